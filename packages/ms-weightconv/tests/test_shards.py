import json

import pytest
from ms_weightconv import convert
from ms_weightconv.errors import SourceError
from ms_weightconv.shards import read_weights
from ms_weightconv.source import open_source

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(folders):
    target = folders.root / "sharded"
    convert(folders.huggingface("llama"), target, to="huggingface", max_shard_size="5KB", progress=False)
    return target


def edit(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def test_a_missing_shard_is_refused_by_name(sharded):
    (sharded / "model-00002-of-00005.safetensors").unlink(missing_ok=True)
    missing = sorted({*json.loads((sharded / INDEX).read_text())["weight_map"].values()})[1]
    (sharded / missing).unlink(missing_ok=True)

    with pytest.raises(SourceError, match=f"missing: .*{missing}"):
        read_weights(sharded)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "x.bin", "a\\b.safetensors"]
)
def test_an_index_that_leads_out_of_the_folder_is_refused(sharded, name):
    edit(sharded, lambda index: index["weight_map"].update({"lm_head.weight": name}))

    with pytest.raises(SourceError, match="expected plain names"):
        read_weights(sharded)


def test_an_index_that_does_not_fit_its_shards_is_refused_with_all_names(sharded):
    def change(index):
        index["weight_map"]["ghost.weight"] = index["weight_map"]["lm_head.weight"]
        del index["weight_map"]["model.norm.weight"]

    edit(sharded, change)

    with pytest.raises(SourceError, match=r"model\.norm\.weight is in .*ghost\.weight is not in"):
        read_weights(sharded)


def test_a_truncated_shard_is_refused_by_name(sharded):
    path = sorted(sharded.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(SourceError, match=f"{path.name}.*cut short"):
        read_weights(sharded)


def test_a_link_out_of_the_folder_is_refused_and_the_hubs_cache_is_read(folders):
    source = folders.huggingface("llama")
    blobs = folders.root / "models--x" / "blobs"
    snapshot = folders.root / "models--x" / "snapshots" / "abc"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    for number, path in enumerate(source.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
        (source / path.name).symlink_to(blobs / str(number))

    assert len(open_source(snapshot).tensors) > 10
    with pytest.raises(SourceError, match=r"a link to .*outside the folder"):
        open_source(source)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytorch_model.bin", r"pytorch_model\.bin: not a zip"),
        ("pytorch_model-00001-of-00002.bin", "a shard whose index pytorch_model.bin.index.json is missing"),
        ("consolidated.00.pth", "comes with consolidated.00.pth"),
        ("model.ckpt", r"model\.ckpt: .*not a checkpoint of MindSpore"),
        ("tf_model.h5", "TensorFlow"),
        ("notes.txt", "no model.safetensors, no"),
    ],
)
def test_other_kinds_of_weights_are_named_with_what_to_do(folders, name, text):
    source = folders.huggingface("llama")
    (source / "model.safetensors").rename(source / name)

    with pytest.raises(SourceError, match=text):
        open_source(source)


def test_a_single_file_needs_a_config_and_a_known_kind(folders):
    source = folders.huggingface("llama")
    (source / "model.h5").write_bytes(b"x")
    (folders.root / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())

    with pytest.raises(SourceError, match="TensorFlow"):
        open_source(source / "model.h5")
    with pytest.raises(SourceError, match=r"no config\.json beside it; give one"):
        open_source(folders.root / "model.safetensors")
    assert open_source(folders.root / "model.safetensors", config=source).layout == "huggingface"


def test_several_ckpt_files_need_a_choice(folders):
    source = folders.huggingface("llama")
    (source / "model.safetensors").unlink()
    for name in ("a.ckpt", "b.ckpt"):
        (source / name).write_bytes(b"x")

    with pytest.raises(SourceError, match=r"several \.ckpt files \(a\.ckpt, b\.ckpt\)"):
        open_source(source)


def test_weights_and_index_side_by_side_are_refused(sharded):
    (sharded / "model.safetensors").write_bytes(b"")

    with pytest.raises(SourceError, match="holds both"):
        read_weights(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1, "a": 2}', '{"a": Infinity}', "\ufeff{}"])
def test_a_config_that_is_not_strict_json_is_refused(folders, text):
    source = folders.huggingface("llama")
    (source / "config.json").write_text(text, encoding="utf-8")

    with pytest.raises(SourceError, match=r"config\.json"):
        open_source(source)
