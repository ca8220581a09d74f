"""The network here is three lines of numpy; that the causes hold for real ones is tested with transformers."""

import numpy as np
import pytest
from ms_weightconv.contract import read_config
from ms_weightconv.divergence import Outputs, compare, corrections, find_causes

CONFIG = read_config(
    {
        "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
        "max_position_embeddings": 32, "num_key_value_heads": 4,
    },
    "test",
)  # fmt: skip


def weights():
    rng = np.random.default_rng(0)
    arrays = {"embedding.weight": rng.normal(size=(20, 16)), "lm_head.weight": rng.normal(size=(20, 16))}
    for layer in range(3):
        for part in ("query", "key", "value", "output"):
            arrays[f"blocks.{layer}.attention.{part}.weight"] = rng.normal(size=(16, 16)) * 0.3
    return arrays


def run(config, arrays):
    """Not attention, but every weight counts, and in its own way."""
    rows, layers = arrays["embedding.weight"][None, :7], []
    for layer in range(3):
        query, key, value, output = (
            arrays[f"blocks.{layer}.attention.{part}.weight"] for part in ("query", "key", "value", "output")
        )
        rows = rows + np.tanh((rows @ query.T) * np.arange(16) + (rows @ key.T) ** 2 + rows @ value.T) @ output.T
        rows = rows * (1 + config["rms_norm_eps"] * 1e4)
        layers.append(rows)
    return Outputs(logits=rows @ arrays["lm_head.weight"].T, layers=layers)


def test_equal_outputs_have_no_first_diverging_layer():
    comparison = compare(run(CONFIG, weights()), run(CONFIG, weights()))

    assert comparison.is_equal
    assert comparison.first_diverging is None
    assert comparison.logits.largest == 0
    assert comparison.logits.cosine == pytest.approx(1)
    assert len(comparison.layers) == 3


def test_the_first_layer_that_parts_is_named_and_the_mistake_in_it_alone():
    reference, wrong = run(CONFIG, weights()), weights()
    names = [f"blocks.1.attention.{part}.weight" for part in ("query", "key")]
    wrong |= {names[0]: wrong[names[1]], names[1]: wrong[names[0]]}

    comparison = compare(run(CONFIG, wrong), reference)

    assert comparison.first_diverging == "layer 1"
    assert comparison.layers[0].largest == 0
    assert comparison.layers[1].cosine < 0.999
    assert find_causes(CONFIG, wrong, run, reference) == ["query and key exchanged in layer 1 alone"]


def test_a_difference_in_the_head_alone_is_named():
    reference, wrong = run(CONFIG, weights() | {"lm_head.weight": weights()["embedding.weight"]}), weights()

    assert compare(run(CONFIG, wrong), reference).first_diverging == "head"
    assert find_causes(CONFIG, wrong, run, reference) == ["head not tied to the embedding"]


def test_every_correction_undoes_its_mistake():
    """What undoes a mistake is a change that another one makes: applied to the right weights, some other undoes it."""
    reference = run(CONFIG, weights())
    everywhere = range(CONFIG["num_hidden_layers"])
    tried = 0

    for _, config, arrays in corrections(CONFIG, weights(), everywhere):
        outputs = run(config, arrays)
        if compare(outputs, reference).is_equal or config["rms_norm_eps"] != CONFIG["rms_norm_eps"]:
            continue  # this network does not see it; eps has its own test
        if np.array_equal(arrays["lm_head.weight"], arrays["embedding.weight"]):
            continue  # the head is lost
        tried += 1
        assert find_causes(config, arrays, run, reference)

    assert tried >= 10


def test_a_setting_is_found_and_what_no_mistake_explains_has_no_cause():
    reference = run(CONFIG, weights())
    other = {**CONFIG, "rms_norm_eps": 1e-6}

    assert find_causes(other, weights(), run, reference) == ["rms_norm_eps 1e-06 instead of 1e-05"]
    noise = {name: array + 0.1 for name, array in weights().items()}
    assert find_causes(CONFIG, noise, run, reference) == []


def test_numbers_that_are_none_are_a_difference():
    broken = run(CONFIG, weights())
    broken.logits[0, 0, 0] = np.nan

    assert not compare(broken, run(CONFIG, weights())).is_equal
    assert compare(Outputs(logits=broken.logits), Outputs(logits=broken.logits)).first_diverging.startswith("unknown")
