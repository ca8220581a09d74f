from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.errors import ConfigError, DatasetError
from ms_dataprep.mixture import Mixture


@pytest.mark.parametrize("weights", [[0.7, 0.3], [7, 3], [1.0] * 300, [1, 2, 3, 1000], [0.001, 0.999]])
def test_counts_follow_the_weights_and_no_dataset_is_starved(weights: list[float]) -> None:
    mixture = Mixture(weights, seed=1)
    shares = np.array(weights) / sum(weights)
    block = int(mixture.counts.sum())

    datasets, within = mixture.deal(np.arange(2 * block, dtype=np.int64))

    counts = np.bincount(datasets, minlength=len(weights))
    assert np.abs(counts / (2 * block) - shares).max() < 1e-3 * shares.min() + 1 / block
    assert counts.min() > 0
    for dataset in (0, len(weights) - 1):  # each dataset's own samples come once each, none left out
        assert sorted(within[datasets == dataset].tolist()) == list(range(counts[dataset]))
    early = np.bincount(datasets[: block // 10], minlength=len(weights)) / (block // 10)
    assert np.abs(early - shares).max() < 5 * np.sqrt(shares.max() / (block // 10))


def test_a_position_is_dealt_alike_whatever_came_before() -> None:
    mixture, numbers = Mixture([0.7, 0.3], seed=4), np.arange(10_000, dtype=np.int64)
    datasets, within = mixture.deal(numbers)

    for start in (0, 1, 3333, 9990):
        alone = Mixture([0.7, 0.3], seed=4).deal(numbers[start : start + 7])
        assert (alone[0] == datasets[start : start + 7]).all()
        assert (alone[1] == within[start : start + 7]).all()
    assert (Mixture([0.7, 0.3], seed=5).deal(numbers)[0] != datasets).any()


@pytest.mark.parametrize("weights", [[], [1, 0], [1, -1], [1, float("nan")], [1, 1e-9]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ConfigError, match="weights: "):
        Mixture(weights, seed=0)


@pytest.fixture
def two(build_dataset) -> list[tuple[Path, float]]:
    short = build_dataset(*(f"s{number}" for number in range(5)), folder="short", packing="one_per_row")
    long = build_dataset(*(f"l{number}" for number in range(40)), folder="long", packing="one_per_row")
    return [(short, 0.25), (long, 0.75)]


def test_a_mixture_resumes_and_is_the_same_on_any_number_of_ranks(two) -> None:
    def take(count: int, **options) -> list[dict]:
        iterator = iter(ms_dataprep.load_mixture(two, batch_size=4, seed=3, **options))
        return [next(iterator) for _ in range(count)]

    whole, ahead = take(30), take(30, num_threads=2)

    for name in ("input_ids", "labels", "position_ids", "segment_ids", "sample_ids", "dataset_ids"):
        assert all((a[name] == b[name]).all() for a, b in zip(whole, ahead, strict=True))
        assert all((a[name] == b[name]).all() for a, b in zip(whole[11:], take(19, samples=44), strict=True))
        parts = [take(30, rank=rank, world_size=4) for rank in range(4)]
        for step, batch in enumerate(whole):
            assert (np.concatenate([part[step][name] for part in parts]) == batch[name]).all()
    assert sum(int((batch["dataset_ids"] == 0).sum()) for batch in whole) == pytest.approx(30, abs=12)


def test_datasets_that_do_not_belong_together_are_refused(two, build_dataset) -> None:
    other = build_dataset("abc", folder="other", seq_length=9)

    with pytest.raises(DatasetError, match=r"other: seq_length is 9, that of .*short is 8"):
        ms_dataprep.load_mixture([*two, (other, 1.0)], batch_size=1)
