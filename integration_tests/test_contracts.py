"""What holds the contracts together: documents, schemas and golden files agree with each other."""

import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from jsonschema import Draft202012Validator

CONTRACTS = Path(__file__).parent / "contracts"
NAMES = ("batch", "bundle", "checkpoint", "dataset", "metrics", "model", "plan")
SCHEMAS = sorted(CONTRACTS.glob("*/*.schema.json"))
# every golden JSON that a schema describes
GOLDEN = {
    "bundle/golden/bundle.json": "bundle/bundle.schema.json",
    "checkpoint/golden/v1/step-00000003/index.json": "checkpoint/index.schema.json",
    "checkpoint/golden/v1/step-00000003/state.json": "checkpoint/state.schema.json",
    "dataset/golden/bytes/dataset.json": "dataset/dataset.schema.json",
    "dataset/golden/int32/dataset.json": "dataset/dataset.schema.json",
    **{
        f"model/golden/{p.parent.name}/config.json": "model/config.schema.json"
        for p in CONTRACTS.glob("model/golden/*/config.json")
    },
    **{f"plan/golden/{p.name}": "plan/plan.schema.json" for p in CONTRACTS.glob("plan/golden/plan-*.json")},
}


def _read(path):
    return json.loads((CONTRACTS / path).read_text(encoding="utf-8"))


def _validator(schema):
    return Draft202012Validator(_read(schema))


def _metrics_lines():
    return [json.loads(line) for line in (CONTRACTS / "metrics/golden/metrics.jsonl").read_text("utf-8").splitlines()]


def _check(contracts, *names):
    command = [sys.executable, contracts / "make_golden.py", "--check", *names]
    return subprocess.run(command, capture_output=True, text=True, cwd=contracts.parent)


@pytest.mark.parametrize("name", NAMES)
def test_every_contract_says_how_it_is_laid_out_and_what_it_does_not_promise(name):
    document = (CONTRACTS / name / "README.md").read_text(encoding="utf-8")

    assert document.startswith(f"# Contract `{name}`, version 1\n")
    assert re.search(r"^## Layout$", document, re.M)
    assert re.search(r"^## Not promised\n\S", document, re.M)


def test_every_folder_is_a_contract_of_the_table():
    folders = {path.parent.name for path in CONTRACTS.glob("*/README.md")}

    assert folders == set(NAMES)
    assert all(f"[{name}]({name}/README.md)" in (CONTRACTS / "README.md").read_text("utf-8") for name in NAMES)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.name)
def test_a_schema_is_valid_draft_2020_12_and_closed(schema):
    value = _read(schema)

    Draft202012Validator.check_schema(value)

    assert value["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    free = {"options", "model", "values"}  # objects that the documents call free
    for name, part in _objects_of(value):
        assert "additionalProperties" in part or name in free, f"{name} is open"


def _objects_of(part, name="root"):
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield name, part
        for key, value in part.items():
            yield from _objects_of(value, key)
    elif isinstance(part, list):
        for value in part:
            yield from _objects_of(value, name)


def test_every_schema_has_a_golden_file():
    used = {CONTRACTS / schema for schema in GOLDEN.values()} | {CONTRACTS / "metrics/metrics.schema.json"}

    assert used == set(SCHEMAS)


@pytest.mark.parametrize(("golden", "schema"), GOLDEN.items())
def test_a_golden_file_satisfies_its_schema_and_a_changed_one_does_not(golden, schema):
    value, validator = _read(golden), _validator(schema)
    required = _read(schema)["required"]

    validator.validate(value)

    assert not validator.is_valid(value | {"format": "somebody.else"})
    assert not validator.is_valid(value | {"version": 2})
    assert not validator.is_valid(value | {"surprise": None})
    for key in required:
        assert not validator.is_valid({k: v for k, v in value.items() if k != key}), f"valid without {key}"


def test_every_metrics_line_satisfies_its_schema_and_a_changed_one_does_not():
    lines, validator = _metrics_lines(), _validator("metrics/metrics.schema.json")

    for line in lines:
        validator.validate(line)
        assert not validator.is_valid(line | {"surprise": None})
        for key in line.keys() - {"auxiliary_loss"}:  # which only some models have
            assert not validator.is_valid({k: v for k, v in line.items() if k != key}), f"valid without {key}"
    assert not validator.is_valid(lines[0] | {"version": 2})
    assert {line.get("kind") for line in lines} == {None, "train", "evaluation", "sample"}


def test_make_golden_would_write_the_same_files():
    result = _check(CONTRACTS)

    assert result.returncode == 0, result.stdout + result.stderr


def test_make_golden_names_a_changed_a_missing_and_an_unexpected_file(tmp_path):
    shutil.copytree(CONTRACTS, tmp_path / "contracts")
    step = tmp_path / "contracts/checkpoint/golden/v1/step-00000003"
    (step / "rank-00000.safetensors").write_bytes(b"changed")
    (step / "COMMIT").unlink()
    (step / "extra").touch()

    result = _check(tmp_path / "contracts", "checkpoint")

    assert result.returncode == 1
    assert sorted(line.rpartition("/")[2] for line in result.stdout.splitlines()) == [
        "COMMIT: missing", "extra: unexpected file", "rank-00000.safetensors: differs",
    ]  # fmt: skip


def test_golden_order_is_a_permutation_of_each_epoch():
    golden = _read("batch/golden/order.json")

    for case in golden["permutations"]:
        if case["rows"] == len(case["order"]):
            assert sorted(case["order"]) == list(range(case["rows"]))
        assert len(set(case["order"])) == len(case["order"])
    assert all(0 <= value["row"] < value["rows"] for value in golden["values"])


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_golden_dataset_is_what_a_stock_reader_reads_and_its_counts_add_up(layout):
    from mindspore.dataset import MindDataset

    folder = CONTRACTS / "dataset/golden" / layout
    manifest, expected = _read(folder / "dataset.json"), _read("dataset/golden/expected.json")
    packing = manifest["packing"]

    files = [str(folder / shard["file"]) for shard in manifest["shards"]]
    rows = [row[0] for row in MindDataset(files, shuffle=False).create_tuple_iterator(num_epochs=1, output_numpy=True)]

    assert [np.atleast_1d(row).view("<i4").tolist() for row in rows] == expected["rows"]
    assert [shard["sha256"] for shard in manifest["shards"]] == [_sha256(Path(file)) for file in files]
    assert manifest["rows"] * manifest["row_length"] == (
        manifest["tokens"] + packing["repeated_tokens"] + packing["padding_tokens"]
    )


def test_every_id_but_a_documents_first_is_a_golden_label_exactly_once():
    expected = _read("dataset/golden/expected.json")

    labels = sorted(label for batch in expected["batches"] for label in batch["labels"] if label != -100)

    assert labels == sorted(token for document in expected["documents"] for token in document[1:])


def test_golden_checkpoint_is_committed_covered_and_read_by_safetensors():
    from safetensors import deserialize

    step = CONTRACTS / "checkpoint/golden/v1/step-00000003"
    index, expected = _read(step / "index.json"), _read("checkpoint/golden/expected.json")
    stored = {file: dict(deserialize((step / file).read_bytes())) for file in index["files"]}

    assert (step / "COMMIT").read_bytes() == (
        f"ms-ckpt.commit 1\n{_sha256(step / 'index.json')} index.json\n{_sha256(step / 'state.json')} state.json\n"
    ).encode()
    for file, entry in index["files"].items():
        content = (step / file).read_bytes()
        chunks = [c for tensor in index["tensors"].values() for c in tensor["chunks"] if c["file"] == file]
        assert len(content) == entry["bytes"]
        assert entry["header_checksum"] == f"crc32:{crc32(content[: entry['header_bytes']]):08x}"
        assert entry["bytes"] - entry["header_bytes"] == sum(len(stored[file][c["key"]]["data"]) for c in chunks)
        assert {chunk["key"] for chunk in chunks} == set(stored[file])
    for name, tensor in index["tensors"].items():
        data = bytes.fromhex(expected["tensors"][name]["hex"])
        size = len(data) // max(1, int(np.prod(tensor["shape"])))
        whole = np.frombuffer(data, f"V{size}" if size else "V4").reshape(tensor["shape"])
        for chunk in tensor["chunks"]:
            here = tuple(slice(at, at + n) for at, n in zip(chunk["offset"], chunk["shape"], strict=True))
            content = bytes(stored[chunk["file"]][chunk["key"]]["data"])
            assert content == whole[here].tobytes()
            assert chunk["checksum"] == f"crc32:{crc32(content):08x}"


def test_golden_state_keeps_floats_to_the_last_bit():
    values = _read("checkpoint/golden/v1/step-00000003/state.json")["values"]
    expected = _read("checkpoint/golden/expected.json")

    assert values == expected["values"]
    assert [value.hex() for value in values["floats"]] == expected["floats_as_hex"]


@pytest.mark.parametrize("plan", sorted(CONTRACTS.glob("plan/golden/plan-*.json")), ids=lambda path: path.stem)
def test_golden_plan_slices_tile_every_parameter_once_per_replica(plan):
    value = _read(plan)
    shapes = _read("plan/golden/parameters-tied.json" if plan.stem.endswith("tied") else "plan/golden/parameters.json")

    for name, shape in shapes.items():
        owners = [rank for rank in value["ranks"] if name in rank["slices"]]
        stages = {rank["coordinates"]["pipeline"] for rank in owners}
        assert len(owners) == len(stages) * value["mesh"]["data"] * value["mesh"]["tensor"]
        parts = {str(rank["slices"][name]): rank["slices"][name] for rank in owners}.values()
        assert sum(int(np.prod([stop - start for start, stop in part])) for part in parts) == int(np.prod(shape))
        if not (plan.stem.endswith("tied") and name == "embedding.weight"):
            assert len(stages) == 1


def test_golden_bundle_carries_its_own_checksum():
    content = (CONTRACTS / "bundle/golden/bundle.json").read_bytes()

    marks = list(re.finditer(rb'"checksum": "sha256:([0-9a-f]{64})"', content))

    assert len(marks) == 1
    start, stop = marks[0].span(1)
    assert marks[0][1].decode() == sha256(content[:start] + b"0" * 64 + content[stop:]).hexdigest()


def _sha256(path):
    return f"sha256:{sha256(path.read_bytes()).hexdigest()}"
