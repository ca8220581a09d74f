import json

import numpy as np
import pytest
import torchzips as tz
from click.testing import CliRunner
from ms_weightconv.adapter import convert_adapter
from ms_weightconv.cli import main
from ms_weightconv.errors import ConfigError, RuleError, SourceError

MODULES = {
    "llama": ("model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.v_proj", "model.layers.{}.mlp.down_proj"),
    "gpt2": ("transformer.h.{}.attn.c_attn", "transformer.h.{}.mlp.c_fc"),
    "falcon40": ("transformer.h.{}.self_attention.query_key_value", "transformer.h.{}.mlp.dense_4h_to_h"),
    "phi3": ("model.layers.{}.self_attn.qkv_proj", "model.layers.{}.mlp.gate_up_proj"),
}
RANK = 3


def peft(folders, family, *, name="adapter", **changes):
    """A PEFT folder as it is written for a base model of transformers, and the base's folder."""
    base, folder = folders.huggingface(family, name=f"{name}-base"), folders.root / name
    shapes = {key: words.shape for key, (_, words) in folders.read(base).items()}
    rng, tensors = np.random.default_rng(0), {}
    for layer in range(2):
        for module in (pattern.format(layer) for pattern in MODULES[family]):
            rows, columns = shapes[f"{module}.weight"]
            out, into = (columns, rows) if family == "gpt2" else (rows, columns)
            for part, shape in (("A", (RANK, into)), ("B", (out, RANK))):
                array = rng.integers(-4, 5, shape).astype("<f4")
                tensors[f"base_model.model.{module}.lora_{part}.weight"] = ("F32", array.view("<u4"))
    folder.mkdir()
    folders.write(folder / "adapter_model.safetensors", tensors)
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", "fan_in_fan_out": family == "gpt2",
        "target_modules": ["some", "short", "names"], "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    return folder, base


def deltas(folders, folder):
    """What an adapter adds to each matrix `[out, in]`, but for the scale; exact, the numbers being small and whole."""
    arrays = {key: words.view("<f4") for key, (_, words) in folders.read(folder).items()}
    names = {key.removesuffix(".lora_A.weight") for key in arrays if ".lora_A." in key}
    return {
        name.removeprefix("base_model.model."): arrays[f"{name}.lora_B.weight"] @ arrays[f"{name}.lora_A.weight"]
        for name in names
    }


@pytest.mark.parametrize("family", MODULES)
def test_an_adapter_comes_back_bit_for_bit_with_its_config(folders, family):
    source, base = peft(folders, family)

    ours = convert_adapter(source, folders.root / "ours", to="mindspore", base=base)
    convert_adapter(folders.root / "ours", folders.root / "back", to="huggingface", base=base)

    folders.assert_same(source, folders.root / "back")
    config = "adapter_config.json"
    assert folders.json(folders.root / "back" / config) == folders.json(source / config)
    assert ours["fan_in_fan_out"] is False
    assert all(name.startswith("blocks.") for name in ours["target_modules"])


@pytest.mark.parametrize("family", MODULES)
def test_what_an_adapter_adds_is_what_the_matrix_would_have_become(folders, family):
    source, base = peft(folders, family)

    convert_adapter(source, folders.root / "ours", to="mindspore", base=base)

    theirs = {
        f"{name}.weight": delta.T if family == "gpt2" else delta for name, delta in deltas(folders, source).items()
    }
    whole = {key: theirs.get(key, np.zeros(words.shape, "<f4")) for key, (_, words) in folders.read(base).items()}
    expected = folders.expected(folders.json(base / "config.json"), whole)
    found = deltas(folders, folders.root / "ours")
    assert len(found) >= len(theirs)
    for name, delta in found.items():
        assert np.array_equal(delta, expected[f"{name}.weight"]), name
    assert {name for name, delta in expected.items() if delta.any()} == {f"{name}.weight" for name in found}


@pytest.mark.parametrize("uses_rslora", [False, True])
def test_parts_that_were_trained_apart_are_fused_with_the_same_effect(folders, uses_rslora):
    source, base = peft(folders, "phi3", use_rslora=uses_rslora)
    ours = folders.root / "ours"
    convert_adapter(source, ours, to="mindspore", base=base)
    tensors = folders.read(ours)
    for key in [key for key in tensors if ".key." in key]:
        del tensors[key]  # this one was not trained
    for number, key in enumerate(sorted(tensors)):
        dtype, words = tensors[key]
        tensors[key] = (dtype, (words.view("<f4") + number % 3).view("<u4"))
    folders.write(ours / "adapter_model.safetensors", tensors)
    before = deltas(folders, ours)

    there = convert_adapter(ours, folders.root / "there", to="huggingface", base=base)
    convert_adapter(folders.root / "there", folders.root / "again", to="mindspore", base=base)

    after = deltas(folders, folders.root / "again")
    assert there["r"] == 2 * RANK
    assert there["lora_alpha"] == pytest.approx(6 * (2**0.5 if uses_rslora else 2))  # the scale is what it was
    for name, delta in after.items():
        assert np.array_equal(delta, before.get(name, np.zeros_like(delta))), name


def test_an_old_bin_file_with_default_names_is_read(folders):
    source, base = peft(folders, "llama")
    tensors = {key.replace(".weight", ".default.weight"): value for key, value in folders.read(source).items()}
    convert_adapter(source, folders.root / "ours", to="mindspore", base=base)
    (source / "adapter_model.safetensors").unlink()
    tz.write_state(source / "adapter_model.bin", tensors)

    convert_adapter(source, folders.root / "other", to="mindspore", base=base)

    folders.assert_same(folders.root / "ours", folders.root / "other")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"use_dora": True}, "use_dora: found True; plain LoRA"),
        ({"bias": "all"}, "bias: found 'all'"),
        ({"peft_type": "IA3"}, "peft_type: found 'IA3'"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": "3"}, "r '3'"),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_name(folders, changes, text):
    source, base = peft(folders, "llama", **changes)

    with pytest.raises(ConfigError, match=text):
        convert_adapter(source, folders.root / "ours", to="mindspore", base=base)


def test_modules_ranks_and_files_that_do_not_fit_are_refused(folders):
    source, base = peft(folders, "llama")
    other = folders.huggingface("gpt2", name="gpt2")

    with pytest.raises(RuleError, match=r"no projection of the base model.*model\.layers\.0\.self_attn\.q_proj"):
        convert_adapter(source, folders.root / "ours", to="mindspore", base=other)
    (source / "adapter_config.json").write_text(json.dumps(folders.json(source / "adapter_config.json") | {"r": 4}))
    with pytest.raises(SourceError, match="do not have rank 4"):
        convert_adapter(source, folders.root / "ours", to="mindspore", base=base)
    (source / "adapter_model.safetensors").unlink()
    with pytest.raises(SourceError, match=r"adapter_model\.safetensors: no such file"):
        convert_adapter(source, folders.root / "ours", to="mindspore", base=base)
    assert not (folders.root / "ours").exists()


def test_the_command_converts_an_adapter(folders):
    source, base = peft(folders, "gpt2")
    arguments = ["adapter", str(source), str(folders.root / "ours"), "--to", "mindspore", "--base", str(base)]

    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    assert "8 target modules, rank 3" in result.output
    assert CliRunner().invoke(main, [*arguments, "--overwrite"]).exit_code == 0
