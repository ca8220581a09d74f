import itertools
import json
import shutil
from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.errors import ConfigError, DatasetError


def take(loader: ms_dataprep.Loader, count: int) -> list[dict[str, np.ndarray]]:
    return list(itertools.islice(loader, count))


def equal(one: list[dict[str, np.ndarray]], two: list[dict[str, np.ndarray]]) -> bool:
    return len(one) == len(two) and all(
        a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a) for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_the_golden_folder_gives_the_golden_batches(golden: Path, layout: str) -> None:
    expected = json.loads((golden / "expected.json").read_text())["batches"]
    loader = ms_dataprep.load(golden / layout, batch_size=2, evaluation=True, verify=True)

    batches = list(loader)

    assert len(batches) == len(loader) == 3
    for name in ("input_ids", "labels", "position_ids", "segment_ids"):
        assert all(batch[name].dtype == np.int32 and batch[name].shape == (2, 8) for batch in batches)
        assert np.concatenate([batch[name] for batch in batches])[:5].tolist() == [row[name] for row in expected]
    assert batches[2]["labels"][1].tolist() == [-100] * 8
    assert batches[2]["sample_ids"].tolist() == [4, -1]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_global_batches_are_the_same_for_any_number_of_ranks(eleven_rows: Path, world_size: int) -> None:
    one = take(ms_dataprep.load(eleven_rows, batch_size=4, seed=5), 7)
    ranks = [
        take(ms_dataprep.load(eleven_rows, batch_size=4, seed=5, rank=rank, world_size=world_size), 7)
        for rank in range(world_size)
    ]

    joined = [
        {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} for parts in zip(*ranks, strict=True)
    ]

    assert equal(joined, one)
    assert not equal(joined, take(ms_dataprep.load(eleven_rows, batch_size=4, seed=6), 7))


def test_an_epoch_holds_every_row_once(eleven_rows: Path) -> None:
    batches = take(ms_dataprep.load(eleven_rows, batch_size=1), 22)
    firsts = [int(batch["input_ids"][0, 0]) for batch in batches]

    assert len(set(firsts[:11])) == len(set(firsts[11:])) == 11
    assert firsts[:11] != firsts[11:]
    assert [int(batch["sample_ids"][0]) for batch in batches] == list(range(22))


def test_training_resumes_at_any_position_with_the_same_batches(eleven_rows: Path) -> None:
    loader = ms_dataprep.load(eleven_rows, batch_size=3, seed=1)
    whole = take(loader, 12)

    assert loader.samples == 36
    assert loader.epoch == 3
    for step in range(12):
        resumed = ms_dataprep.load(eleven_rows, batch_size=3, seed=1, samples=3 * step)
        assert equal(take(resumed, 12 - step), whole[step:])
    stopped = ms_dataprep.load(eleven_rows, batch_size=3, seed=1)
    assert equal(take(stopped, 5) + take(stopped, 7), whole)


def test_a_far_position_is_reached_at_once(eleven_rows: Path) -> None:
    (batch,) = take(ms_dataprep.load(eleven_rows, batch_size=2, samples=10**15), 1)

    assert batch["sample_ids"].tolist() == [10**15, 10**15 + 1]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_evaluation_counts_every_row_once_on_any_number_of_ranks(eleven_rows: Path, world_size: int) -> None:
    loaders = [
        ms_dataprep.load(eleven_rows, batch_size=4, rank=rank, world_size=world_size, evaluation=True)
        for rank in range(world_size)
    ]
    batches = [list(loader) for loader in loaders]

    assert {len(rank) for rank in batches} == {3}
    seen = np.concatenate([batch["sample_ids"] for rank in batches for batch in rank])
    assert sorted(seen.tolist()) == [-1, *range(11)]
    labels = np.concatenate([batch["labels"] for rank in batches for batch in rank])
    assert (labels != -100).any(axis=1).sum() == 11
    assert equal(batches[0], list(loaders[0]))


def test_file_order_is_kept_without_shuffling(eleven_rows: Path) -> None:
    train = take(ms_dataprep.load(eleven_rows, batch_size=11, shuffle=False), 1)[0]
    evaluated = next(iter(ms_dataprep.load(eleven_rows, batch_size=11, evaluation=True)))

    assert np.array_equal(train["input_ids"], evaluated["input_ids"])


def test_a_mindspore_dataset_gives_the_same_batches_epoch_after_epoch(eleven_rows: Path) -> None:
    wanted = take(ms_dataprep.load(eleven_rows, batch_size=4, samples=4), 4)
    dataset = ms_dataprep.load(eleven_rows, batch_size=4, samples=4).to_dataset()

    iterator = dataset.create_dict_iterator(num_epochs=2, output_numpy=True)
    got = [item for _ in range(2) for item in iterator]

    assert dataset.get_dataset_size() == 2
    assert len(got) == 4
    for item, batch in zip(got, wanted, strict=True):
        assert all(np.array_equal(item[name], batch[name]) for name in item)


def test_mindspores_own_model_trains_from_it(eleven_rows: Path) -> None:
    import mindspore
    from mindspore import nn, ops

    class Loss(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1000, 8)
            self.head = nn.Dense(8, 1000)

        def construct(self, input_ids, labels, position_ids, segment_ids):  # type: ignore[no-untyped-def]
            logits = self.head(self.table(input_ids) + 0.01 * (position_ids + segment_ids).unsqueeze(-1))
            return ops.cross_entropy(logits.reshape(-1, 1000), labels.reshape(-1), ignore_index=-100)

    losses: list[float] = []

    class Keep(mindspore.train.Callback):  # type: ignore[misc]
        def on_train_step_end(self, run_context: object) -> None:
            losses.append(float(run_context.original_args().net_outputs.asnumpy()))  # type: ignore[attr-defined]

    loader = ms_dataprep.load(eleven_rows, batch_size=4, seed=2)
    network = Loss()
    model = mindspore.Model(network, optimizer=nn.Adam(network.trainable_params(), 0.05))

    model.train(6, loader.to_dataset(), callbacks=[Keep()], dataset_sink_mode=False)

    assert len(losses) == 12
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 6, "world_size": 4}, "global batch of 6 does not divide among 4 ranks"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "found rank 2 of 2"),
        ({"batch_size": 4, "samples": -1}, "samples: expected 0 or more"),
    ],
)
def test_impossible_options_are_refused(eleven_rows: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ms_dataprep.load(eleven_rows, **options)


def test_another_tokenizer_is_refused_by_fingerprint(eleven_rows: Path) -> None:
    right = ms_dataprep.read_manifest(eleven_rows).fingerprint

    ms_dataprep.load(eleven_rows, batch_size=1, tokenizer_fingerprint=right)
    with pytest.raises(DatasetError, match=f"made with tokenizer {right}, expected sha256:00"):
        ms_dataprep.load(eleven_rows, batch_size=1, tokenizer_fingerprint="sha256:00")


def test_an_id_beyond_the_models_vocabulary_is_found_before_training(build_dataset, tokenizer) -> None:
    folder = build_dataset("a", "z", packing="one_per_row")
    eod = tokenizer.eod_id

    with pytest.raises(DatasetError, match=f"row 0 has id {eod} at place 1, outside the vocabulary of {eod}"):
        ms_dataprep.load(folder, batch_size=1, vocab_size=eod)
    ms_dataprep.load(folder, batch_size=1, vocab_size=eod + 1)


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_a_flipped_byte_is_found_when_asked_for(build_dataset, layout: str) -> None:
    folder = build_dataset("the cat and the cat", seq_length=16, layout=layout)
    shard = folder / "shard-00000.mindrecord"
    content = bytearray(shard.read_bytes())
    content[-40] ^= 1
    shard.write_bytes(content)

    with pytest.raises(DatasetError, match=r"shard-00000\.mindrecord: damaged"):
        ms_dataprep.load(folder, batch_size=1, verify=True)
    with pytest.raises(DatasetError, match=r"shard-00000\.mindrecord: damaged"):
        ms_dataprep.verify(folder)


def test_an_index_of_another_shard_is_refused(eleven_rows: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(eleven_rows, tmp_path / "copy")
    first, *_, last = ms_dataprep.read_manifest(folder).shards
    shutil.copyfile(folder / f"{last.file}.db", folder / f"{first.file}.db")

    assert first.rows != last.rows
    with pytest.raises(DatasetError, match=f"{last.rows} rows in its index, expected {first.rows}"):
        ms_dataprep.load(folder, batch_size=1)


def test_training_has_no_length(eleven_rows: Path) -> None:
    with pytest.raises(TypeError, match="without end"):
        len(ms_dataprep.load(eleven_rows, batch_size=1))
