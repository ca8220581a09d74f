"""Tests of the Weights & Biases run, offline with the real library, and of the line that installs it."""

import sys

import pytest
from ms_trainloop.errors import MissingExtraError


def records(path):
    """Bytes of each record of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    data, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def logged(folder):
    """(run id, items) of every row in the files of the offline runs."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(path):
            items = Record.FromString(data).history.item
            if items:
                rows.append((path.stem, {(item.key or item.nested_key[0]): item.value_json for item in items}))
    return rows


def test_the_metrics_are_logged_offline_and_a_resumed_run_keeps_its_id(lab, tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    keeper = lab.NpzCheckpointer(tmp_path / "checkpoints")
    for stop_after in (2, 4):
        lab.train(
            lab.make_step(lab.make_config(wandb="offline", steps=4)), lab.batches_of(lab.make_rows(), 4),
            run_dir=tmp_path, checkpointer=keeper, progress=None, stop_after=stop_after,
        )  # fmt: skip

    rows = logged(tmp_path)

    from ms_trainloop.metrics import read_metrics

    written = {line["step"]: line["loss"] for line in read_metrics(tmp_path)}
    found = {int(items["step"]): float(items["train/loss"]) for _, items in rows}
    assert found == written
    assert len({name for name, _ in rows}) == 1, "one id"


def test_without_the_library_the_message_ends_with_the_line_that_installs_it(lab, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)

    with pytest.raises(MissingExtraError, match=r'pip install "ms-trainloop\[wandb\]"$'):
        lab.train(
            lab.make_step(lab.make_config(wandb="offline")), lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path,
            progress=None,
        )  # fmt: skip
