import json
from pathlib import Path

import numpy as np
import pytest
from ms_dataprep.batches import SpecialIds, content_lengths, make_batch, mask_rows


def test_batches_are_the_contracts_golden_ones(golden: Path) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    manifest = json.loads((golden / "int32" / "dataset.json").read_text())

    batch = make_batch(np.array(expected["rows"], np.int32), SpecialIds(**manifest["special_ids"]))

    for name, array in batch.items():
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
        assert array.tolist() == [row[name] for row in expected["batches"]], name


@pytest.mark.parametrize(
    ("row", "special", "labels", "positions", "segments"),
    [
        # two documents, EOD 9 also pads: its first one in the trailing run is an end
        ([1, 2, 9, 3, 9, 9, 9], SpecialIds(eod=9), [2, 9, -100, 9, -100, -100], [0, 1, 2, 0, 1, 0], [1, 1, 1, 2, 2, 0]),
        # full to the last id, no padding
        ([1, 9, 3, 4, 5, 6, 9], SpecialIds(eod=9), [9, -100, 4, 5, 6, 9], [0, 1, 0, 1, 2, 3], [1, 1, 2, 2, 2, 2]),
        # a pad id of its own; id 0 is a real token
        ([0, 2, 9, 0, 9, 7, 7], SpecialIds(eod=9, pad=7), [2, 9, -100, 9, -100, -100], [0, 1, 2, 0, 1, 0],
         [1, 1, 1, 2, 2, 0]),
        # a stream's row that begins with the EOD of the document before
        ([9, 1, 2, 3, 9, 4, 5], SpecialIds(eod=9), [-100, 2, 3, 9, -100, 5], [0, 0, 1, 2, 3, 0], [1, 2, 2, 2, 2, 3]),
    ],
)  # fmt: skip
def test_labels_positions_and_segments_of_a_row(row, special, labels, positions, segments) -> None:
    batch = make_batch(np.array([row], np.int32), special)

    assert batch["input_ids"].tolist() == [row[:-1]]
    assert batch["labels"].tolist() == [labels]
    assert batch["position_ids"].tolist() == [positions]
    assert batch["segment_ids"].tolist() == [segments]


def test_a_row_of_one_document_and_a_row_of_padding_only() -> None:
    rows = np.array([[1, 2, 3], [7, 7, 7]], np.int32)

    assert content_lengths(rows, SpecialIds(eod=9, pad=7)).tolist() == [3, 0]


def test_masked_rows_count_for_nothing() -> None:
    batch = make_batch(np.array([[1, 2, 9], [3, 4, 9]], np.int32), SpecialIds(eod=9))

    mask_rows(batch, 1)

    assert batch["labels"].tolist() == [[2, 9], [-100, -100]]
    assert all(batch[name][1].tolist() == [0, 0] for name in ("input_ids", "position_ids", "segment_ids"))
