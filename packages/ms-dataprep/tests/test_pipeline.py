import json
from pathlib import Path

import jsonschema
import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.errors import DataprepError, DatasetError, SourceError
from ms_dataprep.rows import Rows


def read_rows(folder: Path) -> list[list[int]]:
    manifest = ms_dataprep.read_manifest(folder)
    return Rows(folder, manifest).read(np.arange(manifest.rows)).tolist()


@pytest.mark.parametrize("layout", ["int32", "bytes"])
@pytest.mark.parametrize("packing", ["best_fit", "concat", "one_per_row"])
def test_what_is_written_follows_the_contract(golden, contracts, tmp_path, tokenizer_path, layout, packing) -> None:
    config = ms_dataprep.DataConfig(seq_length=8, layout=layout, packing=packing)
    source = golden / "documents.jsonl"

    ms_dataprep.build([source], tmp_path / "out", tokenizer=tokenizer_path, config=config)

    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    theirs = json.loads((golden / layout / "dataset.json").read_text())
    schema = json.loads((contracts / "dataset" / "dataset.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(manifest)
    same = ("seq_length", "row_length", "column", "documents", "vocab_size", "special_ids", "tokenizer", "layout")
    assert {key: manifest[key] for key in same} == {key: theirs[key] for key in same}
    assert manifest["sources"][0] == {**theirs["sources"][0], "path": str(source)}
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer_path.read_bytes()
    if packing == "best_fit":
        assert manifest["tokens"] == theirs["tokens"]
        assert manifest["packing"] == theirs["packing"]
    else:
        wanted = json.loads((golden / "packings.json").read_text())[packing]
        assert read_rows(tmp_path / "out") == wanted["rows"]
    assert ms_dataprep.verify(tmp_path / "out").tokens == manifest["tokens"]


def test_three_documents_are_a_end_b_end_c_end(build_dataset, tokenizer) -> None:
    folder = build_dataset("a", "b", "c", seq_length=5)
    eod = tokenizer.eod_id

    (row,) = read_rows(folder)

    assert row == [*tokenizer.encode("a"), eod, *tokenizer.encode("b"), eod, *tokenizer.encode("c"), eod]
    manifest = ms_dataprep.read_manifest(folder)
    assert (manifest.documents, manifest.tokens, manifest.packing["padding_tokens"]) == (3, 6, 0)


def test_everything_dropped_is_counted_under_its_reason(tmp_path, tokenizer_path) -> None:
    source = tmp_path / "in.jsonl"
    lines = ['{"text":"abc"}', '{"text": "b"', "", '{"text":" \\u200b"}', '{"text":"x"}', '{"text":"abc\\r\\n"}', "7"]
    source.write_text("\n".join(lines) + "\n")
    config = ms_dataprep.DataConfig(seq_length=8, min_characters=2)

    manifest = ms_dataprep.build([source], tmp_path / "out", tokenizer=tokenizer_path, config=config)

    assert manifest.dropped == {"bad_line": 2, "blank_line": 1, "empty": 1, "too_short": 1, "duplicate": 1}
    assert manifest.documents == 1
    assert manifest.sources[0]["documents"] == 4
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(line["file"], line["line"]) for line in rejected] == [(str(source), 2), (str(source), 7)]
    assert rejected[1]["reason"] == "expected a JSON object, found a number"
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["dropped"] == manifest.dropped
    assert sum(report["lengths"].values()) == 1


def test_on_error_fail_stops_at_the_line_and_leaves_nothing(tmp_path, tokenizer_path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text":"a"}\n{"text": 5}\n')
    config = ms_dataprep.DataConfig(seq_length=8, on_error="fail")

    with pytest.raises(SourceError, match=r"in\.jsonl:2: 'text': expected a string, found a number"):
        ms_dataprep.build([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tokenizer_path, config=config)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_input_without_a_document_is_refused_with_the_first_reason(tmp_path, tokenizer_path) -> None:
    (tmp_path / "in.jsonl").write_text('{"content":"a"}\n{"content":"b"}\n')

    with pytest.raises(SourceError, match=r"no document is left of 1 files \(2 bad_line\); first: .*no key 'text'"):
        ms_dataprep.build(
            [tmp_path / "in.jsonl"],
            tmp_path / "out",
            tokenizer=tokenizer_path,
            config=ms_dataprep.DataConfig(seq_length=8),
        )

    assert not (tmp_path / "out").exists()


def test_train_and_validation_share_no_document_and_miss_none(build_dataset, tokenizer) -> None:
    texts = [f"number {number}" for number in range(120)] + ["number 5", "number 6"]

    parts = {}
    for part in ("train", "validation"):
        folder = build_dataset(
            *texts, folder=part, part=part, validation_share=0.2, packing="one_per_row", seq_length=32
        )
        parts[part] = {tuple(row) for row in read_rows(folder)}

    assert not parts["train"] & parts["validation"]
    assert len(parts["train"]) + len(parts["validation"]) == 120
    assert parts["validation"]


def test_a_second_build_is_refused_and_overwriting_replaces_the_dataset(build_dataset, tokenizer_path) -> None:
    folder = build_dataset("one", "two")
    before = (folder / "dataset.json").read_bytes()

    with pytest.raises(DatasetError, match="is not empty; choose another folder or give --overwrite"):
        build_dataset("three")
    assert (folder / "dataset.json").read_bytes() == before
    manifest = ms_dataprep.build(
        [folder.parent / "dataset.jsonl"],
        folder,
        tokenizer=tokenizer_path,
        config=ms_dataprep.DataConfig(seq_length=4),
        overwrite=True,
    )

    assert ms_dataprep.read_manifest(folder) == manifest
    assert manifest.seq_length == 4


def test_the_same_input_gives_the_same_shards(build_dataset) -> None:
    texts = [f"the cat number {number}" * (number % 5 + 1) for number in range(60)]

    one, two = (build_dataset(*texts, folder=name, shard_megabytes=1e-3) for name in ("one", "two"))

    first, second = (ms_dataprep.read_manifest(folder) for folder in (one, two))
    assert read_rows(one) == read_rows(two)
    assert [shard.rows for shard in first.shards] == [shard.rows for shard in second.shards]
    assert len(first.shards) > 2


def test_a_literal_end_string_does_not_end_a_document(build_dataset, tokenizer) -> None:
    folder = build_dataset("a <|endoftext|> b", seq_length=40)

    assert read_rows(folder)[0].index(tokenizer.eod_id) == len(tokenizer.encode("a <|endoftext|> b"))


def test_a_begin_id_stands_before_every_document(tmp_path, tokenizer_path, tokenizer, write_lines) -> None:
    content = json.loads(tokenizer_path.read_text("utf-8"))
    content["added_tokens"] += [
        {**content["added_tokens"][0], "id": content["added_tokens"][0]["id"] + place, "content": name}
        for place, name in ((1, "<s>"), (2, "[PAD]"))
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    source = write_lines("a", "b")

    manifest = ms_dataprep.build(
        [source],
        tmp_path / "out",
        tokenizer=tmp_path / "tokenizer.json",
        config=ms_dataprep.DataConfig(seq_length=7, add_bos=True),
    )

    special = manifest.special_ids
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    assert read_rows(tmp_path / "out") == [
        [special.bos, a, special.eod, special.bos, b, special.eod, special.pad, special.pad]
    ]
    assert manifest.tokens == 6
    assert ms_dataprep.verify(tmp_path / "out").padding_tokens == 2
    with pytest.raises(DataprepError, match=r"add_bos: .* has no beginning-of-document token"):
        ms_dataprep.build(
            [source],
            tmp_path / "no",
            tokenizer=tokenizer_path,
            config=ms_dataprep.DataConfig(seq_length=7, add_bos=True),
        )


def test_the_report_is_one_page_that_needs_nothing_else(build_dataset) -> None:
    page = (build_dataset("a <b> & c", "two", "two") / "report.html").read_text("utf-8")

    assert "<svg" in page
    assert "duplicate" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_stock_mind_dataset_reads_all_shards_together(build_dataset) -> None:
    import mindspore.dataset as ds

    texts = [f"the cat number {number} sat" * (number % 9 + 1) for number in range(80)]
    folder = build_dataset(*texts, shard_megabytes=1e-3, seq_length=32)
    files = [str(folder / shard.file) for shard in ms_dataprep.read_manifest(folder).shards]

    read = ds.MindDataset(files, shuffle=False).create_tuple_iterator(num_epochs=1, output_numpy=True)

    assert len(files) > 4
    assert sorted(row.tolist() for (row,) in read) == sorted(read_rows(folder))


def test_a_concat_stream_of_every_shard_is_verified(build_dataset) -> None:
    texts = [f"the cat number {number} sat" * (number % 9 + 1) for number in range(80)]

    folder = build_dataset(*texts, shard_megabytes=1e-3, seq_length=32, packing="concat")

    manifest = ms_dataprep.read_manifest(folder)
    assert len(manifest.shards) > 4
    assert manifest.packing["repeated_tokens"] == manifest.rows - len(manifest.shards)
    assert ms_dataprep.verify(folder).document_ends == 80


def test_sources_are_written_as_often_as_their_weights_say(tmp_path, tokenizer_path) -> None:
    for name in ("once", "twice", "quarter", "never"):
        lines = "".join(json.dumps({"text": f"{name} {number}"}) + "\n" for number in range(400))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    weights = {"*twice*": 2, "*quarter*": 0.25, "*never*": 0}
    config = ms_dataprep.DataConfig(seq_length=64, source_weights=weights)

    manifest = ms_dataprep.build(
        sorted(tmp_path.glob("*.jsonl")), tmp_path / "out", tokenizer=tokenizer_path, config=config, progress=False
    )

    kept = {
        Path(source["path"]).stem: source
        for source in json.loads((tmp_path / "out/report.json").read_text())["sources"]
    }
    assert (kept["once"]["kept"], kept["twice"]["kept"], kept["never"]["kept"]) == (400, 800, 0)
    assert 60 < kept["quarter"]["kept"] < 140
    assert manifest.dropped == {"source_weight": 800 - kept["quarter"]["kept"]}


def test_standard_input_is_json_lines(tmp_path, tokenizer_path, monkeypatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"text": "一"}\n{"text": "b"}\n'.encode())))

    manifest = ms_dataprep.build(
        ["-"], tmp_path / "out", tokenizer=tokenizer_path, config=ms_dataprep.DataConfig(seq_length=16), progress=False
    )

    assert (manifest.documents, manifest.sources[0]["path"]) == (2, "-")
