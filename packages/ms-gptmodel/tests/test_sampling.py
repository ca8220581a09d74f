"""The choice of the next id: distributions, order of the cuts, determinism, refusals."""

import numpy as np
import pytest
from ms_gptmodel import ConfigError, GenerationConfig, InputError
from ms_gptmodel.sampling import choose

PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.1])


def draws(count=4000, **options):
    generator = np.random.default_rng(0)
    chosen = [choose(np.log(PROBABILITIES), GenerationConfig(**options), generator) for _ in range(count)]
    return np.bincount(chosen, minlength=4) / count


def test_draws_follow_temperature_top_k_top_p_and_min_p():
    np.testing.assert_allclose(draws(temperature=1.0), [0.5, 0.25, 0.15, 0.1], atol=0.03)
    np.testing.assert_allclose(draws(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0, 0], atol=0.03)
    np.testing.assert_allclose(draws(temperature=1.0, top_p=0.8), [5 / 9, 2.5 / 9, 1.5 / 9, 0], atol=0.03)
    np.testing.assert_allclose(draws(temperature=1.0, min_p=0.4), [2 / 3, 1 / 3, 0, 0], atol=0.03)
    np.testing.assert_allclose(draws(temperature=0.5), np.array([25, 6.25, 2.25, 1]) / 34.5, atol=0.03)
    # Top-p counts what top-k left: of (2/3, 1/3) the first alone reaches 0.6, of all four it does not.
    assert draws(temperature=1.0, top_k=2, top_p=0.6)[0] == 1
    assert draws(temperature=1.0, top_p=0.6)[1] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1e-9},
    ],
)
def test_every_way_to_ask_for_the_most_likely_id_gives_it(options):
    assert draws(count=200, **options)[0] == 1


def test_options_that_cut_nothing_change_no_draw():
    logits = np.random.default_rng(1).standard_normal((50, 1000))

    def texts(**options):
        generator = np.random.default_rng(2)
        return [choose(row, GenerationConfig(temperature=1.0, **options), generator) for row in logits]

    assert texts() == texts(top_k=0, top_p=1.0, min_p=0.0)
    assert texts(top_k=1000) == texts(top_k=5000)
    assert texts() != texts(top_k=2)


def test_top_p_on_a_flat_vocabulary_keeps_its_share_and_a_sharp_one_its_head():
    flat, generator = np.zeros(20_000), np.random.default_rng(0)
    config = GenerationConfig(temperature=1.0, top_p=0.25)

    chosen = [choose(flat, config, generator) for _ in range(2000)]

    assert max(chosen) < 5001  # ties: the lower ids
    assert max(chosen) > 4900
    flat[17] = 30.0
    assert {choose(flat, config, generator) for _ in range(50)} == {17}


def test_ids_that_tie_at_the_edge_of_top_k_are_the_lower_ones():
    generator = np.random.default_rng(0)
    config = GenerationConfig(temperature=1.0, top_k=2)

    assert {choose(np.array([0.0, 1.0, 1.0, 1.0]), config, generator) for _ in range(100)} == {1, 2}


def test_a_repetition_penalty_lowers_what_was_seen_whatever_its_sign():
    config, generator = GenerationConfig(repetition_penalty=2.0), np.random.default_rng(0)

    assert choose(np.array([3.0, 2.0]), config, generator, seen=[0]) == 1
    assert choose(np.array([-1.0, -1.5]), config, generator, seen=[0, 0]) == 1
    assert choose(np.array([5.0, 2.0]), config, generator, seen=[0, 7]) == 0


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(broken):
    with pytest.raises(InputError, match="logits: found NaN or infinity"):
        choose(np.array([0.0, broken]), GenerationConfig(), np.random.default_rng(0))


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"eos_token_ids": (-1,)},
        {"eos_token_ids": 5},
        {"vocab_size": -1},
    ],
)
def test_an_impossible_generation_config_names_the_field(options):
    with pytest.raises(ConfigError, match=f"generation.{next(iter(options))}: expected"):
        GenerationConfig(**options)
