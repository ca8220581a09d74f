import hashlib
import json
import shutil
import struct

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from ms_weightconv import convert, prove
from ms_weightconv.checkpoint import read_checkpoint
from ms_weightconv.errors import ConfigError, RuleError, SourceError


@pytest.fixture
def checkpoint(folders):
    target = folders.root / "checkpoint"
    convert(folders.huggingface("qwen2", dtype="BF16"), target, to="checkpoint", progress=False)
    return target


def recommit(step, change):
    """Edits index.json and writes a COMMIT that fits it, as a careless writer would."""
    index = json.loads((step / "index.json").read_text())
    change(index)
    (step / "index.json").write_text(json.dumps(index))
    lines = [
        f"sha256:{hashlib.sha256((step / n).read_bytes()).hexdigest()} {n}\n" for n in ("index.json", "state.json")
    ]
    (step / "COMMIT").write_text("ms-ckpt.commit 1\n" + "".join(lines))


def test_the_golden_checkpoint_of_two_ranks_is_read_to_the_last_bit(contracts):
    golden = contracts / "checkpoint" / "golden"
    expected = json.loads((golden / "expected.json").read_text())

    step, tensors, values, num_left = read_checkpoint(golden / "v1")

    model = {name: entry for name, entry in expected["tensors"].items() if name.startswith("model.")}
    assert step.name == "step-00000003"
    assert {f"model.{name}" for name in tensors} == set(model)
    assert num_left == len(expected["tensors"]) - len(model)
    assert values == expected["values"]
    for name, entry in model.items():
        tensor = tensors[name.removeprefix("model.")]
        assert (tensor.dtype, list(tensor.shape)) == (entry["dtype"], entry["shape"])
        assert tensor.read().tobytes().hex() == entry["hex"]


def test_a_written_checkpoint_satisfies_the_contract_and_comes_back(folders, contracts, checkpoint):
    step = checkpoint / "step-00000000"
    index = json.loads((step / "index.json").read_text())

    convert(checkpoint, folders.root / "back", to="huggingface", progress=False)

    for name in ("index", "state"):
        schema = json.loads((contracts / "checkpoint" / f"{name}.schema.json").read_text())
        Draft202012Validator(schema).validate(json.loads((step / f"{name}.json").read_text()))
    assert sorted(path.name for path in step.iterdir()) == [
        "COMMIT",
        "index.json",
        "rank-00000.safetensors",
        "state.json",
    ]
    header_bytes = 8 + struct.unpack("<Q", (step / "rank-00000.safetensors").read_bytes()[:8])[0]
    assert index["files"]["rank-00000.safetensors"]["header_bytes"] == header_bytes
    folders.assert_same(folders.root / "hf", folders.root / "back")
    assert folders.json(folders.root / "back" / "config.json") == folders.json(folders.root / "hf" / "config.json")
    prove(checkpoint, folders.root / "hf", progress=False)
    prove(step, folders.root / "back", progress=False)


def test_the_config_is_found_beside_in_the_state_or_as_given(folders, checkpoint):
    config = folders.json(checkpoint / "config.json")
    (checkpoint / "config.json").unlink()
    plain = {key: value for key, value in config.items() if key not in ("format", "version")}

    prove(checkpoint, folders.root / "hf", progress=False)
    step = checkpoint / "step-00000000"
    (step / "state.json").write_text(json.dumps(folders.json(step / "state.json") | {"values": {}}))
    recommit(step, lambda index: None)

    with pytest.raises(SourceError, match=r"no config.*--config"):
        prove(checkpoint, folders.root / "hf", progress=False)
    prove(checkpoint, folders.root / "hf", config=plain, progress=False)
    with pytest.raises(ConfigError, match="missing vocab_size"):
        prove(checkpoint, folders.root / "hf", config={}, progress=False)
    with pytest.raises(RuleError, match=r"blocks\.2\.attention_norm\.weight: missing"):
        prove(checkpoint, folders.root / "hf", config=plain | {"num_hidden_layers": 3}, progress=False)


@pytest.mark.parametrize("position", [0.0, 0.1, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["rank-00000.safetensors", "index.json", "state.json", "COMMIT"])
def test_one_flipped_byte_anywhere_is_found(folders, checkpoint, name, position):
    path = checkpoint / "step-00000000" / name
    content = bytearray(path.read_bytes())
    content[int(len(content) * position)] ^= 1
    path.write_bytes(content)

    with pytest.raises(SourceError, match="step-00000000"):
        convert(checkpoint, folders.root / "back", to="huggingface", progress=False)


@pytest.mark.parametrize("name", ["COMMIT", "rank-00000.safetensors", "index.json", "state.json"])
def test_a_missing_file_and_an_unexpected_one_are_found(checkpoint, name):
    step = checkpoint / "step-00000000"
    shutil.copytree(step, checkpoint / "step-00000001")
    (checkpoint / "step-00000001" / name).unlink()
    (step / "notes.txt").write_text("x")

    with pytest.raises(SourceError, match=r"step-00000001.*step-00000000.*notes\.txt"):
        read_checkpoint(checkpoint)


def test_the_newest_valid_step_is_read_and_the_skipped_one_named(folders, checkpoint, caplog):
    newer = checkpoint / "step-00000007"
    shutil.copytree(checkpoint / "step-00000000", newer)
    (newer / "COMMIT").unlink()

    step, _, _, _ = read_checkpoint(checkpoint)

    assert step.name == "step-00000000"
    assert "step-00000007: COMMIT is missing" in caplog.text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda index: index.update(version=2), "version 2, expected 'ms-ckpt.index' version 1"),
        (lambda index: index["files"].update({"../x.safetensors": {}}), "unexpected or missing files"),
        (lambda index: index["tensors"]["model.norm.weight"]["chunks"].clear(), "not as contract checkpoint has it"),
        (lambda index: index["tensors"]["model.norm.weight"].update(shape=[17]), "do not tile"),
        (lambda index: index["tensors"]["model.norm.weight"]["chunks"][0].update(offset=[4]), "reaches beyond"),
        (
            lambda index: index["tensors"]["model.norm.weight"]["chunks"][0].update(file="rank-00009.safetensors"),
            "not as",
        ),
        (
            lambda index: index["tensors"]["model.norm.weight"].update(
                shape=[32], chunks=index["tensors"]["model.norm.weight"]["chunks"] * 2
            ),
            "do not tile",
        ),
        (lambda index: index["tensors"].pop("model.norm.weight"), None),
    ],
)
def test_an_index_that_contradicts_its_files_is_refused(folders, checkpoint, change, text):
    recommit(checkpoint / "step-00000000", change)

    with pytest.raises((SourceError, RuleError), match=text or r"norm\.weight: missing"):
        convert(checkpoint, folders.root / "back", to="huggingface", progress=False)


def test_tensors_in_several_chunks_are_joined(folders, checkpoint):
    step = checkpoint / "step-00000000"
    stored = folders.read(step)
    dtype, words = stored.pop("model.embedding.weight")
    stored |= {"model.embedding.weight": (dtype, words[:, :5].copy())}
    stored |= {"model.embedding.weight#1": (dtype, words[:, 5:].copy())}
    folders.write(step / "rank-00000.safetensors", stored)

    def change(index):
        import zlib

        content = (step / "rank-00000.safetensors").read_bytes()
        size = 8 + struct.unpack("<Q", content[:8])[0]
        index["files"]["rank-00000.safetensors"] = {
            "bytes": len(content), "header_bytes": size, "header_checksum": f"crc32:{zlib.crc32(content[:size]):08x}",
        }  # fmt: skip
        index["tensors"]["model.embedding.weight"]["chunks"] = [
            {"file": "rank-00000.safetensors", "key": f"model.embedding.weight{suffix}", "offset": [0, at],
             "shape": list(part.shape), "checksum": f"crc32:{zlib.crc32(part.tobytes()):08x}"}
            for suffix, at, part in (("", 0, words[:, :5]), ("#1", 5, words[:, 5:]))
        ]  # fmt: skip

    recommit(step, change)
    convert(checkpoint, folders.root / "back", to="huggingface", progress=False)

    folders.assert_same(folders.root / "hf", folders.root / "back")
    assert np.array_equal(folders.read(folders.root / "back")["model.embed_tokens.weight"][1], words)
