"""There and back through every format, and what is refused on the way."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from ms_ckpt import CheckpointConfig, CheckpointStore, PartStore, RawTensor
from ms_ckpt.cli import main
from ms_ckpt.safetensors_file import INDEX_NAME, read_safetensors_file, read_safetensors_folder

TENSORS = {
    "model.up.weight": np.arange(12, dtype=np.float32).reshape(4, 3) / 7,
    "model.norm.weight": RawTensor("BF16", np.array([0x3FC0, 0x7FA1, 1], np.uint16)),
    "optimizer.exp_avg.up.weight": np.arange(12, dtype=np.float64).reshape(4, 3),
    "optimizer.step": np.array(9),
}
VALUES = {"samples_consumed": 72, "learning_rate": 1e-4, "nothing": None, "names": ["é", 1]}


@pytest.fixture
def root(tmp_path):
    CheckpointStore(tmp_path / "root").save(7, TENSORS, VALUES)
    return tmp_path / "root"


def run(*arguments):
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("model.ckpt", []),
        ("model.safetensors", []),
        ("huggingface", ["--to", "huggingface"]),
        ("shards", ["--to", "huggingface", "--max-shard-size", "100B"]),
        ("other", ["--to", "checkpoint"]),
    ],
)
def test_there_and_back_keeps_every_bit_and_value(tmp_path, root, words_of, target, options):
    there = run(root, tmp_path / target, *options)
    back = run(tmp_path / target, tmp_path / "back", "--to", "checkpoint")

    assert (there.exit_code, back.exit_code) == (0, 0), there.output + back.output
    assert there.output == f"{tmp_path / target}: 4 tensors\n"
    loaded = CheckpointStore(tmp_path / "back").load()
    assert (loaded.step, loaded.values) == (7, VALUES)
    assert {name: words_of(tensor) for name, tensor in loaded.tensors.items()} == {
        name: words_of(tensor) for name, tensor in TENSORS.items()
    }
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_file_of_mindspore_becomes_a_checkpoint_with_its_strings(tmp_path):
    mindspore = pytest.importorskip("mindspore")
    net = mindspore.nn.Dense(3, 2)
    mindspore.save_checkpoint(net, str(tmp_path / "net.ckpt"), append_dict={"note": "x", "epoch": 3})

    result = run(tmp_path / "net.ckpt", tmp_path / "root", "--to", "checkpoint", "--step", 40)
    again = run(tmp_path / "root", tmp_path / "again.ckpt")

    assert (result.exit_code, again.exit_code) == (0, 0), result.output + again.output
    loaded = CheckpointStore(tmp_path / "root").load()
    assert (loaded.step, loaded.values) == (40, {"strings": {"note": "x"}})
    np.testing.assert_array_equal(loaded.tensors["weight"], net.weight.asnumpy())
    parameters = mindspore.load_checkpoint(str(tmp_path / "again.ckpt"), crc_check=True)
    assert parameters["note"] == "x"
    fresh = mindspore.nn.Dense(3, 2)
    assert mindspore.load_param_into_net(fresh, parameters)[0] == []  # nothing that the net has was missing
    np.testing.assert_array_equal(fresh.weight.asnumpy(), net.weight.asnumpy())


def test_names_can_be_chosen_and_changed(tmp_path, root):
    result = run(root, tmp_path / "m.safetensors", "--only", "transformer.*", "--rename", "model.*=transformer.*")

    assert result.exit_code == 0, result.output
    assert sorted(read_safetensors_file(tmp_path / "m.safetensors")[0]) == [
        "transformer.norm.weight",
        "transformer.up.weight",
    ]


def test_floats_are_cast_and_whole_numbers_are_not(tmp_path, root):
    result = run(root, tmp_path / "m.safetensors", "--dtype", "BF16")

    assert result.exit_code == 0, result.output
    tensors = read_safetensors_file(tmp_path / "m.safetensors")[0]
    assert {name: lazy.dtype for name, lazy in tensors.items()} == {
        "model.up.weight": "BF16", "model.norm.weight": "BF16", "optimizer.exp_avg.up.weight": "BF16",
        "optimizer.step": "I64",
    }  # fmt: skip
    assert tensors["model.up.weight"].read().to_float32()[0, 1] == np.float32(0.142578125)


def test_cast_that_loses_a_value_leaves_the_target_as_it_was(tmp_path):
    CheckpointStore(tmp_path / "root").save(1, {"a": np.ones(3), "b": np.array([1e6])}, {})
    (tmp_path / "m.safetensors").write_bytes(b"before")

    result = run(tmp_path / "root", tmp_path / "m.safetensors", "--dtype", "F16", "--replace")

    assert result.exit_code == 1
    assert "b: 1e+06 does not fit F16" in result.output
    assert (tmp_path / "m.safetensors").read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "root"]


def test_damaged_source_leaves_no_target(tmp_path, root):
    path = root / "step-00000007" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")

    for target in ("m.safetensors", "m.ckpt"):
        result = run(root, tmp_path / target)
        assert result.exit_code == 1
        assert "checksum" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_target_that_exists_is_replaced_only_when_asked(tmp_path, root):
    for target, options in (("m.safetensors", []), ("m.ckpt", []), ("hf", ["--to", "huggingface"])):
        assert run(root, tmp_path / target, *options).exit_code == 0
        assert "--replace" in run(root, tmp_path / target, *options).output
        assert run(root, tmp_path / target, *options, "--replace").exit_code == 0
    assert "already saved" in run(tmp_path / "m.ckpt", root, "--to", "checkpoint").output


def test_folder_with_more_than_weights_is_never_replaced(tmp_path, root):
    run(root, tmp_path / "hf", "--to", "huggingface")
    (tmp_path / "hf" / "config.json").write_text("{}")

    result = run(root, tmp_path / "hf", "--to", "huggingface", "--replace")

    assert "holds more than weights (config.json)" in result.output
    assert (tmp_path / "hf" / "config.json").exists()


def test_hugging_face_folder_is_cut_and_indexed(tmp_path, root):
    run(root, tmp_path / "hf", "--to", "huggingface", "--max-shard-size", "100B")

    assert len(set(json.loads((tmp_path / "hf" / INDEX_NAME).read_text())["weight_map"].values())) == 3
    assert read_safetensors_folder(tmp_path / "hf")[0].keys() == TENSORS.keys()


def test_newest_valid_checkpoint_of_a_root_is_taken(tmp_path, root):
    store = CheckpointStore(root, CheckpointConfig(keep_last=0))
    (store.save(8, {"w": np.zeros(1)}, {}) / "COMMIT").unlink()

    assert "4 tensors" in run(root, tmp_path / "m.safetensors").output


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("root", [], "say what to write: --to checkpoint"),
        ("root", ["--to", "safetensors", "--only", "nothing.*"], "no tensor fits nothing.*"),
        ("root", ["--to", "safetensors", "--rename", "a"], "expected OLD=NEW"),
        ("root", ["--to", "safetensors", "--rename", "encoder.*=x.*"], "matches no tensor"),
        ("root", ["--to", "huggingface", "--max-shard-size", "5XB"], "expected a size such as 5GB"),
        ("text.txt", ["--to", "checkpoint"], "expected a checkpoint or its root"),
        ("ranks", ["--to", "checkpoint"], "several ranks; give the strategy"),
        ("empty", ["--to", "checkpoint"], "no valid checkpoint"),
        ("parts/rank-00000-of-00002", ["--to", "safetensors"], "only rank 0's part; merge the parts first"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_sentence(tmp_path, root, source, options, message):
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "ranks" / "rank_0").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    PartStore(tmp_path / "parts", rank=0, world_size=2).save(1, {}, {})

    result = run(tmp_path / source, tmp_path / "target", *options)

    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "target").exists()
