"""Golden files of contract `dataset`: five documents packed by hand into five rows, in both layouts."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from golden_writers.batch import batch_of_row
from golden_writers.document import write_json
from golden_writers.tokenizer import fingerprint, load_tokenizer, tokenizer_json

SEQ_LENGTH = 8
_ROW_LENGTH = SEQ_LENGTH + 1
_TEXTS = (
    " the cat and the cat of the世界。 the",  # 15 ids: its second piece stands first in row 1 and fills it with "a"
    "a",
    "<|endoftext|>",  # ordinary text, 13 ids and EOD: its second piece stands last in row 3
    "the",
    "on。世界",
)
# Row by row the pieces (document, first id); a piece ends with its document or with its row.
_ROWS = (((0, 0),), ((0, 8), (1, 0)), ((2, 0),), ((3, 0), (2, 8)), ((4, 0),))
_SHARDS = (3, 2)


def write(folder: Path) -> None:
    """Writes `documents.jsonl`, `packings.json`, `expected.json` and a dataset folder for each layout."""
    folder.mkdir(parents=True, exist_ok=True)
    source = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in _TEXTS)
    (folder / "documents.jsonl").write_text(source, encoding="utf-8", newline="\n")
    tokenizer = load_tokenizer(tokenizer_json())
    eod = tokenizer.token_to_id("<|endoftext|>")
    documents = [[*tokenizer.encode(text, add_special_tokens=False).ids, eod] for text in _TEXTS]
    rows, counts = _pack(documents, eod)
    write_json(folder / "packings.json", _other_packings(documents, eod))
    batches = [batch_of_row(row, eod, None) for row in rows]
    write_json(folder / "expected.json", {"documents": documents, "rows": rows, "batches": batches})
    for layout in ("int32", "bytes"):
        _write_dataset(folder / layout, layout, rows, counts, source.encode(), tokenizer.get_vocab_size(), eod)


def _pack(documents: list[list[int]], eod: int) -> tuple[list[list[int]], dict[str, int]]:
    rows, pieces, counts = [], 0, {"tokens": sum(map(len, documents)), "repeated": 0, "padding": 0}
    for plan in _ROWS:
        row: list[int] = []
        for document, start in plan:
            row += documents[document][start : start + _ROW_LENGTH]
            counts["repeated"] += start > 0
            pieces += 1
        assert len(row) <= _ROW_LENGTH, f"row {plan} holds {len(row)} ids"
        counts["padding"] += _ROW_LENGTH - len(row)
        rows.append(row + [eod] * (_ROW_LENGTH - len(row)))
    assert len(rows) * _ROW_LENGTH == sum(counts.values()), counts
    return rows, counts | {"cut": pieces - len(documents)}


def _other_packings(documents: list[list[int]], eod: int) -> dict[str, Any]:
    """What `concat` and `one_per_row` must give, since the contract leaves them no choice."""
    stream = [token for document in documents for token in document]
    concat = [stream[at : at + _ROW_LENGTH] for at in range(0, len(stream) - 1, SEQ_LENGTH)]
    single = [document[:_ROW_LENGTH] for document in documents]

    def padded(rows: list[list[int]]) -> list[list[int]]:
        return [row + [eod] * (_ROW_LENGTH - len(row)) for row in rows]

    cut, at = 0, 0
    for document in documents:  # the row of an id is the one that holds it first
        first, last = at, at + len(document) - 1
        cut += max(0, first - 1) // SEQ_LENGTH != max(0, last - 1) // SEQ_LENGTH
        at += len(document)
    return {
        "concat": {"rows": padded(concat), "repeated_tokens": len(concat) - 1, "documents_cut": cut},
        "one_per_row": {
            "rows": padded(single),
            "truncated_tokens": sum(len(document) - len(row) for document, row in zip(documents, single, strict=True)),
        },
    }


def _write_dataset(
    folder: Path, layout: str, rows: list[list[int]], counts: dict[str, int], source: bytes, vocab_size: int, eod: int
) -> None:
    import mindspore
    from mindspore.mindrecord import FileWriter

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8", newline="\n")
    field = {"type": "int32", "shape": [_ROW_LENGTH]} if layout == "int32" else {"type": "bytes"}
    shards, start = [], 0
    for number, size in enumerate(_SHARDS):
        arrays = [np.array(row, "<i4") for row in rows[start : start + size]]
        path = folder / f"shard-{number:05d}.mindrecord"
        writer = FileWriter(str(path), 1, overwrite=True)
        writer.set_header_size(1 << 14)
        writer.set_page_size(1 << 15)
        writer.add_schema({"input_ids": field}, "rows")
        writer.write_raw_data([{"input_ids": a if layout == "int32" else a.tobytes()} for a in arrays])
        writer.commit()
        content = path.read_bytes()
        shards.append({"file": path.name, "rows": size, "bytes": len(content), "sha256": _hash(content)})
        start += size
    manifest = {
        "format": "ms-dataprep.dataset",
        "version": 1,
        "created_by": "make_golden.py 1",
        "mindspore_version": mindspore.__version__,
        "seq_length": SEQ_LENGTH,
        "row_length": _ROW_LENGTH,
        "layout": layout,
        "column": "input_ids",
        "rows": len(rows),
        "tokens": counts["tokens"],
        "documents": len(_TEXTS),
        "vocab_size": vocab_size,
        "special_ids": {"eod": eod, "pad": None, "bos": None},
        "tokenizer": {"file": "tokenizer.json", "kind": "huggingface", "fingerprint": fingerprint(tokenizer_json())},
        "packing": {
            "method": "best_fit",
            "padding_tokens": counts["padding"],
            "repeated_tokens": counts["repeated"],
            "truncated_tokens": 0,
            "documents_cut": counts["cut"],
            "padding_share": counts["padding"] / (len(rows) * _ROW_LENGTH),
        },
        "options": {"written": "by hand"},
        "sources": [
            {"path": "documents.jsonl", "bytes": len(source), "sha256": _hash(source), "documents": len(_TEXTS)}
        ],
        "dropped": {},
        "shards": shards,
    }
    write_json(folder / "dataset.json", manifest)


def _hash(content: bytes) -> str:
    return f"sha256:{sha256(content).hexdigest()}"
