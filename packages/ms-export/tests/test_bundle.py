import hashlib
import json
import re
import shutil
from pathlib import Path

import jsonschema
import ms_export
import pytest
from ms_export import bundle as bundles
from ms_export.errors import BundleError

CONTRACT = Path(__file__).parents[3] / "integration_tests" / "contracts" / "bundle"


@pytest.fixture
def copy(bundle, tmp_path):
    """A bundle that a test may harm."""
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def _reseal(folder, change):
    """Changes the document and gives it a right checksum, as another writer would."""
    path = folder / "bundle.json"
    document = json.loads(path.read_text())
    change(document)
    document["checksum"] = "sha256:" + "0" * 64
    zeroed = json.dumps(document).encode()
    path.write_bytes(zeroed.replace(b"0" * 64, hashlib.sha256(zeroed).hexdigest().encode(), 1))


def _refusal(folder):
    with pytest.raises(BundleError) as error:
        ms_export.Runtime(folder)
    return str(error.value)


@pytest.mark.parametrize("name", ["bundle", "text_bundle"])
def test_what_is_written_follows_the_schema(request, name):
    schema = json.loads((CONTRACT / "bundle.schema.json").read_text())

    document = json.loads((request.getfixturevalue(name) / "bundle.json").read_text())

    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_golden_document_is_read():
    golden = json.loads((CONTRACT / "golden" / "bundle.json").read_text())

    bundle = bundles.read(CONTRACT / "golden")

    assert bundle.files == golden["files"]
    assert [g.file for g in bundle.graphs] == [g["file"] for g in golden["graphs"]]
    assert list(bundle.cache.parameters) == golden["cache"]["parameters"]
    assert list(bundle.generation.eos_token_ids) == golden["generation"]["eos_token_ids"]
    assert bundle.tokenizer.fingerprint == golden["tokenizer"]["fingerprint"]


def test_a_document_is_read_as_it_was_written(bundle, tmp_path):
    document = bundles.read(bundle)

    document.write(tmp_path)

    assert (tmp_path / "bundle.json").read_bytes() == (bundle / "bundle.json").read_bytes()


def test_all_weights_stand_in_one_file_and_graphs_hold_none(bundle, toy, config):
    largest_weight = max(p.asnumpy().nbytes for p in toy.cached_model(config).weights.values())
    bytes_of_a_weight = toy.cached_model(config).weights["lm_head.weight"].asnumpy().tobytes()

    graphs = list(bundle.glob("*.mindir"))

    assert largest_weight >= 8192
    assert len(graphs) == 6
    assert all(bytes_of_a_weight[:64] not in path.read_bytes() for path in graphs)
    assert (bundle / "model.safetensors").read_bytes().count(bytes_of_a_weight) == 1


def test_one_byte_changed_in_any_file_is_refused_by_name(copy):
    for path in sorted(copy.iterdir()):
        original = path.read_bytes()
        for place in (0, len(original) // 2, len(original) - 2):
            changed = bytearray(original)
            changed[place] ^= 1
            path.write_bytes(changed)

            assert path.name in _refusal(copy), place
        path.write_bytes(original)
    ms_export.Runtime(copy)


def test_every_changed_byte_of_the_document_is_refused(copy):
    path = copy / "bundle.json"
    original = path.read_bytes()
    for place in range(len(original)):
        changed = bytearray(original)
        changed[place] ^= 1
        path.write_bytes(changed)

        with pytest.raises(BundleError, match=r"bundle\.json"):
            bundles.read(copy)


def test_missing_unexpected_and_truncated_files_are_refused_together(copy):
    (copy / "prefill-00004.mindir").unlink()
    (copy / "notes.txt").write_text("mine")
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-1])

    message = _refusal(copy)

    assert "prefill-00004.mindir: missing" in message
    assert "notes.txt: unexpected" in message
    assert re.search(r"model\.safetensors: changed, \d+ bytes where \d+ were written", message)


def test_a_link_in_place_of_a_file_is_refused(copy, bundle):
    (copy / "parity.npz").unlink()
    (copy / "parity.npz").symlink_to(bundle / "parity.npz")

    assert "parity.npz: expected a plain file" in _refusal(copy)


def test_a_folder_without_a_document_and_no_folder_are_refused(copy, tmp_path):
    (copy / "bundle.json").unlink()

    assert "did not finish" in _refusal(copy)
    assert "no such folder" in _refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(("key", "value"), [("version", 2), ("format", "other.bundle"), ("version", True)])
def test_another_format_or_version_is_refused_naming_both(copy, key, value):
    _reseal(copy, lambda document: document.update({key: value}))

    assert f"{value!r}" in _refusal(copy)
    assert "expected 'ms-export.bundle' version 1" in _refusal(copy)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.update(surprise=1), "surprise: unknown key"),
        (lambda d: d.pop("tokenizer"), "missing 'tokenizer'"),
        (lambda d: d.update(vocab_size="many"), "vocab_size: expected int"),
        (lambda d: d["cache"].update(slots=None), "cache.slots"),
        (lambda d: d["graphs"][0].update(kind="other"), "kind 'other'"),
        (lambda d: d["graphs"][0]["inputs"][0].update(dtype="int64"), "expected int32 inputs"),
        (lambda d: d["graphs"][0].update(file="../escape.mindir"), "plain file names"),
        (lambda d: d["graphs"][0].update(file="other.mindir"), "other.mindir is used and not listed"),
        (lambda d: d.update(graphs=[g for g in d["graphs"] if g["kind"] == "decode"]), "one prefill graph"),
        (lambda d: d["cache"].update(max_length=17), "no decode graph has window"),
        (lambda d: d.update(graphs=[1]), "bundle.json"),
        (lambda d: d.update(precision="bfloat16"), "precision bfloat16"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused_by_name(copy, change, named):
    _reseal(copy, change)

    assert named in _refusal(copy)


@pytest.mark.parametrize("text", [b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"{", b"[]", b"\xef\xbb\xbf{}"])
def test_a_document_that_is_not_strict_json_is_refused(copy, text):
    (copy / "bundle.json").write_bytes(text)

    assert "bundle.json" in _refusal(copy)


def test_a_whole_bundle_loads_without_verification_too(bundle):
    assert ms_export.Runtime(bundle, verify=False).longest_prompt == 12
