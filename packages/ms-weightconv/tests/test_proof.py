import json

import numpy as np
import pytest
from ms_weightconv import convert, prove
from ms_weightconv.errors import ProofError


@pytest.fixture
def pair(folders):
    source, target = folders.huggingface("qwen3"), folders.root / "ours"
    convert(source, target, to="mindspore", progress=False)
    return source, target


def test_the_proof_states_counts_and_checksums(folders, pair):
    report = prove(*pair, progress=False)

    stored = folders.read(pair[1])
    assert report.num_tensors == len(stored) == len(report.checksums)
    assert report.num_parameters == sum(words.size for _, words in stored.values())
    assert json.loads(json.dumps(report.as_dict()))["layouts"] == ["huggingface", "mindspore"]


def test_one_flipped_bit_is_named(folders, pair):
    stored = folders.read(pair[1])
    words = stored["blocks.1.mlp.up.weight"][1].copy()
    words[3, 2] ^= np.uint32(1)
    folders.write(pair[1] / "model.safetensors", stored | {"blocks.1.mlp.up.weight": ("F32", words)})

    with pytest.raises(ProofError, match=r"differ: blocks\.1\.mlp\.up\.weight: 1 of 384 words differ$"):
        prove(*pair, progress=False)


def test_every_differing_config_key_is_named(folders, pair):
    path = pair[1] / "config.json"
    path.write_text(json.dumps(folders.json(path) | {"rms_norm_eps": 1e-6, "rope_theta": 5.0, "layer_norm_eps": 0.1}))

    with pytest.raises(ProofError) as error:
        prove(*pair, progress=False)
    assert "config rms_norm_eps: 1e-05 and 1e-06; config rope_theta: 1000000.0 and 5.0" in str(error.value)
    assert "layer_norm_eps" not in str(error.value)


def test_another_model_of_the_same_shapes_is_no_proof(folders, pair):
    def change(tensors):
        first, second = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"
        tensors[first], tensors[second] = tensors[second], tensors[first]

    other = folders.huggingface("qwen3", name="other", change=change)

    with pytest.raises(ProofError, match=r"blocks\.0\.attention\.key\.weight.*blocks\.0\.attention\.value\.weight"):
        prove(other, pair[1], progress=False)
