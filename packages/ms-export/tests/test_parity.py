import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import ms_export
import numpy as np
import pytest
from ms_export import bundle as bundles
from ms_export.errors import BundleError, ModelError, ParityError
from ms_export.parity import Probes
from safetensors.numpy import load_file, save_file


def _rehash(folder):
    document = bundles.read(folder)
    files = {path.name: bundles.describe(path) for path in folder.iterdir() if path.name != "bundle.json"}
    replace(document, files=files).write(folder)


@pytest.fixture
def copy(bundle, tmp_path):
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def test_every_graph_agrees_with_the_source_model(bundle):
    result = ms_export.check(bundle)

    assert set(result.by_graph) == {path.name for path in bundle.glob("*.mindir")}
    assert result.max_abs_difference <= 1e-6 * result.max_abs_logit
    assert result.max_abs_difference == bundles.read(bundle).parity.max_abs_difference


@pytest.mark.parametrize("name", ["embedding.weight", "blocks.0.attention.key.weight", "lm_head.weight"])
def test_a_weight_changed_by_a_thousandth_and_hashed_again_fails(copy, name):
    weights = load_file(copy / "model.safetensors")
    weights[name] = np.ascontiguousarray(weights[name] * 1.001, np.float32)
    save_file(weights, copy / "model.safetensors")
    _rehash(copy)

    with pytest.raises(ParityError, match="differ from the source model"):
        ms_export.check(copy)


def test_a_weight_of_nan_fails(copy):
    weights = load_file(copy / "model.safetensors")
    weights["lm_head.weight"][3, 3] = np.nan
    save_file(weights, copy / "model.safetensors")
    _rehash(copy)

    with pytest.raises(ParityError):
        ms_export.check(copy)


def test_graphs_exchanged_and_hashed_again_are_refused(copy):
    """The one for window 8 in the place of the one for window 16 is wrong from position 8 on."""
    shutil.copy(copy / "decode-0003x00008.mindir", copy / "decode-0003x00016.mindir")
    _rehash(copy)

    with pytest.raises(ParityError, match=r"decode-0003x00016\.mindir"):
        ms_export.check(copy)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("lm_head.weight"), "needs lm_head.weight, which the bundle has not"),
        (lambda w: w.update(extra=np.zeros(2, np.float32)), "extra is used by no graph"),
        (lambda w: w.update({"lm_head.weight": np.zeros((64, 31), np.float32)}), "needs lm_head.weight as"),
        (lambda w: w.update({"lm_head.weight": np.zeros((64, 32), np.float16)}), "needs lm_head.weight as"),
    ],
)
def test_a_missing_extra_reshaped_or_retyped_weight_is_refused_by_name(copy, change, named):
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors")
    _rehash(copy)

    with pytest.raises(BundleError, match=named):
        ms_export.check(copy)


def test_the_file_is_what_the_contract_says(bundle):
    with np.load(bundle / "parity.npz") as file:
        arrays = dict(file)

    probes, steps = arrays["decode_ids"].shape
    assert arrays["input_ids"].dtype == arrays["lengths"].dtype == arrays["decode_ids"].dtype == np.int32
    assert arrays["input_ids"].shape == (probes, arrays["lengths"].max())
    assert arrays["prefill_logits"].shape == (probes, 64)
    assert arrays["decode_logits"].shape == (probes, steps, 64)
    assert arrays["prefill_logits"].dtype == arrays["decode_logits"].dtype == np.float32
    assert steps >= 4


@pytest.mark.parametrize(
    "arrays", [{}, {"input_ids": np.zeros((1, 1))}, {"input_ids": np.zeros((1, 1), np.int32)}, b"no zip at all"]
)
def test_a_file_of_something_else_is_refused(tmp_path, arrays):
    path = tmp_path / "parity.npz"
    path.write_bytes(arrays) if isinstance(arrays, bytes) else np.savez(path, **arrays)

    with pytest.raises(BundleError, match=r"parity\.npz"):
        Probes.read(path)


def test_probes_of_ones_own_are_the_ones_that_are_kept(tmp_path, toy, small):
    folder = ms_export.build(
        tmp_path / "own", model=toy.cached_model(small), config=small, probes=[[5, 6, 7], [9], list(range(1, 13))]
    )

    assert Probes.read(folder / "parity.npz").prompts == [[5, 6, 7], [9], list(range(1, 13))]


def test_probes_that_are_too_long_for_a_graph_are_refused(tmp_path, toy, small):
    config = replace(small, prefill_lengths=(4, 12))

    with pytest.raises(ParityError, match="no probe is short enough for prefill length 4"):
        ms_export.build(tmp_path / "long", model=toy.cached_model(config), config=config, probes=[[1] * 5])

    assert list(tmp_path.iterdir()) == []


def test_a_model_whose_logits_are_not_finite_is_refused(tmp_path, toy, small):
    model = toy.cached_model(small)
    model.weights["lm_head.weight"].set_data(model.weights["lm_head.weight"] * float("nan"))

    with pytest.raises(ModelError, match="not finite"):
        ms_export.build(tmp_path / "nan", model=model, config=small)


def test_the_document_of_an_export_names_its_hashes(bundle):
    document = json.loads((bundle / "bundle.json").read_text())
    for name, entry in document["files"].items():
        assert entry["sha256"] == "sha256:" + hashlib.sha256((bundle / name).read_bytes()).hexdigest()
