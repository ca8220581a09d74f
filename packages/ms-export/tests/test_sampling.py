import numpy as np
import pytest
from ms_export.errors import PromptError
from ms_export.sampling import Sampling

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def _shares(sampling, draws=4000):
    random = np.random.default_rng(0)
    counts = np.bincount([sampling.pick(LOGITS, random) for _ in range(draws)], minlength=4)
    return counts / draws


def test_temperature_0_takes_the_largest_and_draws_nothing():
    random = np.random.default_rng(3)

    assert Sampling(temperature=0).pick(LOGITS[::-1], random) == 3
    assert random.random() == np.random.default_rng(3).random()


def test_temperature_1_follows_the_probabilities():
    # Four standard deviations of a share of 4000 draws are at most 0.032.
    np.testing.assert_allclose(_shares(Sampling(temperature=1.0)), [0.5, 0.3, 0.15, 0.05], atol=0.032)


def test_temperature_sharpens():
    powers = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    np.testing.assert_allclose(_shares(Sampling(temperature=0.5)), powers / powers.sum(), atol=0.032)


def test_top_k_and_top_p_keep_the_likeliest_and_renormalize():
    np.testing.assert_allclose(_shares(Sampling(temperature=1.0, top_k=2)), [0.625, 0.375, 0, 0], atol=0.032)
    np.testing.assert_allclose(_shares(Sampling(temperature=1.0, top_p=0.9)), np.array([10, 6, 3, 0]) / 19, atol=0.032)
    # 0.6 of what top_k 2 leaves is reached by the first alone.
    np.testing.assert_allclose(_shares(Sampling(temperature=1.0, top_k=2, top_p=0.6)), [1, 0, 0, 0])


def test_top_k_beyond_the_vocabulary_and_top_k_0_keep_all():
    assert np.all(_shares(Sampling(temperature=1.0, top_k=9)) == _shares(Sampling(temperature=1.0, top_k=0)))


def test_a_tiny_temperature_and_logits_of_300_give_the_largest():
    logits = np.array([-300, 300, 299], np.float32)

    picked = {Sampling(temperature=1e-30).pick(logits, np.random.default_rng(n)) for n in range(20)}

    assert picked == {1}


def test_logits_that_are_not_finite_are_refused():
    for bad in (np.nan, np.inf):
        with pytest.raises(PromptError, match="1 of 2 logits are not finite"):
            Sampling(temperature=1.0).pick(np.array([0, bad], np.float32), np.random.default_rng(0))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"top_k": 1.5},
        {"max_new_tokens": 0},
        {"max_new_tokens": True},
    ],
)
def test_an_impossible_option_is_refused_by_name(options):
    with pytest.raises(PromptError, match=next(iter(options))):
        Sampling(**options)
