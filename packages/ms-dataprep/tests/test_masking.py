import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.batches import SpecialIds, make_batch
from ms_dataprep.errors import ConfigError
from ms_dataprep.masking import MaskingConfig, mask_batch

SPECIAL = SpecialIds(eod=0, pad=1, bos=2)
CONFIG = MaskingConfig(mask_id=3)


def make_masked(config: MaskingConfig = CONFIG, *, seed: int = 0, first: int = 0, count: int = 400):
    rows = np.random.default_rng(7).integers(4, 1000, (count, 129), dtype=np.int32)
    rows[:, 60], rows[:, 61], rows[:, 120], rows[:, 121:] = 0, 2, 0, 1
    batch = {**make_batch(rows, SPECIAL), "sample_ids": first + np.arange(count)}
    return batch, mask_batch(batch, config, SPECIAL, seed=seed, vocab_size=1000)


def test_shares_are_15_percent_and_of_those_80_10_10() -> None:
    plain, masked = make_masked()
    ids, hidden, labels = plain["input_ids"], masked["input_ids"], masked["labels"]
    chosen = labels != -100
    text = (plain["segment_ids"] > 0) & ~np.isin(ids, [0, 1, 2])

    assert (labels[chosen] == ids[chosen]).all()
    assert (hidden[~chosen] == ids[~chosen]).all()
    assert not chosen[~text].any()
    assert chosen.sum() / text.sum() == pytest.approx(0.15, abs=0.01)
    assert (hidden[chosen] == 3).mean() == pytest.approx(0.8, abs=0.02)
    assert (hidden[chosen] == ids[chosen]).mean() == pytest.approx(0.1, abs=0.02)
    others = hidden[chosen & (hidden != 3) & (hidden != ids)]
    assert not np.isin(others, [0, 1, 2, 3]).any()
    assert others.max() > 900


def test_a_sample_is_masked_alike_wherever_it_stands_and_anew_in_each_epoch() -> None:
    _, whole = make_masked()
    _, again = make_masked()
    _, later = make_masked(first=400)
    _, other = make_masked(seed=1)

    assert (whole["input_ids"] == again["input_ids"]).all()
    assert (whole["input_ids"] != later["input_ids"]).any(axis=1).all()
    assert (whole["input_ids"] != other["input_ids"]).any(axis=1).all()


def test_the_loader_masks_alike_on_any_number_of_ranks_and_after_a_restart(build_dataset) -> None:
    folder = build_dataset(*(f"the cat number {number} sat" for number in range(30)), seq_length=32)
    config = MaskingConfig(mask_id=5, share=0.4)

    def take(count: int, **options) -> list[dict]:
        iterator = iter(ms_dataprep.load(folder, batch_size=4, masking=config, **options))
        return [next(iterator) for _ in range(count)]

    whole = take(9)
    parts = [take(9, rank=rank, world_size=2) for rank in (0, 1)]
    for name in ("input_ids", "labels"):
        assert all((a[name] == b[name]).all() for a, b in zip(whole[4:], take(5, samples=16), strict=True))
        for step, batch in enumerate(whole):
            assert (np.concatenate([part[step][name] for part in parts]) == batch[name]).all()
    evaluation = list(ms_dataprep.load(folder, batch_size=8, masking=config, evaluation=True))
    assert (evaluation[-1]["labels"][evaluation[-1]["sample_ids"] < 0] == -100).all()


@pytest.mark.parametrize("options", [{"mask_id": -1}, {"share": 1.5}, {"mask_share": 0.9, "random_share": 0.2}])
def test_impossible_shares_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=r"mask_id|share"):
        MaskingConfig(**{"mask_id": 1, **options})
