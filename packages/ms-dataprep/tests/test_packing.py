import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from ms_dataprep.batches import SpecialIds, make_batch
from ms_dataprep.packing import Packer, plan_best_fit

EOD = 0


def make_documents(*lengths: int) -> list[np.ndarray]:
    """Documents whose ids are all different, each with EOD."""
    ids = iter(range(1, 1 << 20))
    return [np.array([*(next(ids) for _ in range(length - 1)), EOD], np.int32) for length in lengths]


def pack(method: str, row_length: int, documents: list[np.ndarray], filler: int = EOD) -> tuple:
    packer = Packer(method, row_length, filler=filler)
    for document in documents:
        packer.add(document)
    return packer.finish(), packer.counts


def find_labels(rows: np.ndarray) -> list[int]:
    labels = make_batch(rows, SpecialIds(eod=EOD))["labels"]
    return sorted(labels[(labels != -100) & (labels != EOD)].tolist())


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@pytest.mark.parametrize("row_length", [2, 6, 17])
def test_no_token_is_lost_and_none_is_trained_twice(method: str, row_length: int) -> None:
    lengths = np.random.default_rng(row_length).integers(2, 40, 60).tolist()
    documents = make_documents(*lengths)

    rows, counts = pack(method, row_length, documents)

    after_first = {int(token) for document in documents for token in document[1:-1]}
    labels = find_labels(rows)
    assert set(labels) >= after_first
    assert len(labels) == len(set(labels))
    assert not set(labels) & {int(document[0]) for document in documents}
    assert counts.tokens == sum(lengths)
    assert counts.documents == len(lengths)
    assert rows.size == counts.tokens + counts.repeated_tokens + counts.padding_tokens
    assert len(rows) == counts.rows
    seen = {tuple(pair) for row in rows.tolist() for pair in itertools.pairwise(row)}
    assert all((int(a), int(b)) in seen for document in documents for a, b in itertools.pairwise(document))


def test_lengths_3_2_9_4_in_rows_of_6() -> None:
    rows, counts = pack("best_fit", 6, make_documents(3, 2, 9, 4))

    assert rows.tolist() == [[1, 2, 0, 0, 0, 0], [3, 0, 12, 13, 14, 0], [4, 5, 6, 7, 8, 9], [9, 10, 11, 0, 0, 0]]
    assert (counts.documents_cut, counts.repeated_tokens, counts.padding_tokens) == (1, 1, 5)
    assert counts.tokens == 18


def test_one_short_document_is_one_row() -> None:
    rows, counts = pack("best_fit", 9, make_documents(3))

    assert rows.tolist() == [[1, 2, 0, 0, 0, 0, 0, 0, 0]]
    assert counts.padding_tokens == 6


def test_best_fit_never_cuts_a_document_that_fits_and_wastes_little() -> None:
    lengths = np.random.default_rng(0).integers(2, 200, 3000).tolist()
    documents = make_documents(*lengths)

    rows, counts = pack("best_fit", 256, documents)

    flat = [tuple(row) for row in rows.tolist()]
    joined = ["," + ",".join(map(str, row)) + "," for row in flat]
    assert counts.documents_cut == counts.repeated_tokens == 0
    assert all(any("," + ",".join(map(str, d.tolist())) + "," in row for row in joined) for d in documents[:200])
    assert counts.padding_share < 0.01


def test_a_document_goes_to_the_fullest_row_that_holds_it() -> None:
    plan = plan_best_fit([8, 5, 2, 5], 10)

    assert plan == [[(0, 8), (13, 15)], [(8, 13), (15, 20)]]


def test_a_tail_stands_before_whole_documents() -> None:
    rows, _ = pack("best_fit", 6, [*make_documents(2), np.arange(100, 108, dtype=np.int32) * (np.arange(8) < 7)])

    assert rows.tolist() == [[100, 101, 102, 103, 104, 105], [105, 106, 0, 1, 0, 0]]


def test_other_packings_are_the_contracts_golden_ones(golden: Path) -> None:
    expected = json.loads((golden / "expected.json").read_text())
    packings = json.loads((golden / "packings.json").read_text())
    eod = expected["documents"][0][-1]
    documents = [np.array(document, np.int32) for document in expected["documents"]]

    for method, want in packings.items():
        rows, counts = pack(method, 9, documents, filler=eod)
        assert rows.tolist() == want.pop("rows"), method
        assert {name: getattr(counts, name) for name in want} == want, method


def test_one_per_row_counts_what_it_truncates() -> None:
    rows, counts = pack("one_per_row", 4, make_documents(3, 6))

    assert rows.tolist() == [[1, 2, 0, 0], [3, 4, 5, 6]]
    assert (counts.tokens, counts.truncated_tokens, counts.padding_tokens) == (7, 2, 1)


def test_a_hundred_thousand_documents_are_planned_at_once() -> None:
    lengths = np.random.default_rng(1).integers(2, 2049, 100_000).tolist()

    plan = plan_best_fit(lengths, 2049)

    assert sum(end - start for pieces in plan for start, end in pieces) == sum(lengths)
    assert len(plan) < 1.001 * sum(lengths) / 2049 + 1
