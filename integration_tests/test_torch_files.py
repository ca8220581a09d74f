"""Files of torch.save, read without torch, held against torch and safetensors to the last bit."""

import json

import ms_weightconv
import pytest

pytestmark = pytest.mark.reference


def test_files_of_torch_save_give_the_bits_that_safetensors_files_give(tmp_path):
    """One bin file and bins in shards, in three dtypes, with shared, strided and parameter tensors."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 112, "tie_word_embeddings": True,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(Qwen2Config(**sizes))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        root = tmp_path / str(dtype).partition(".")[2]
        model.to(dtype).save_pretrained(root / "safetensors")
        state = dict(model.state_dict())  # lm_head shares the embedding's storage
        state["model.norm.weight"] = torch.nn.Parameter(state["model.norm.weight"])
        turned = state["model.layers.0.mlp.up_proj.weight"].T.contiguous().T
        assert not turned.is_contiguous()
        state["model.layers.0.mlp.up_proj.weight"] = turned
        (root / "one").mkdir()
        (root / "many").mkdir()
        for folder in ("one", "many"):
            (root / folder / "config.json").write_bytes((root / "safetensors" / "config.json").read_bytes())
        torch.save(state, root / "one" / "pytorch_model.bin")
        names = sorted(state)
        weight_map = {}
        for number, part in enumerate((names[:9], names[9:]), 1):
            file = f"pytorch_model-{number:05d}-of-00002.bin"
            torch.save({name: state[name] for name in part}, root / "many" / file, pickle_protocol=4)
            weight_map |= dict.fromkeys(part, file)
        (root / "many" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))

        for folder in ("safetensors", "one", "many"):
            ms_weightconv.convert(root / folder, root / f"{folder}-ours", to="mindspore", progress=False)
        expected = (root / "safetensors-ours" / "model.safetensors").read_bytes()
        assert (root / "one-ours" / "model.safetensors").read_bytes() == expected
        assert (root / "many-ours" / "model.safetensors").read_bytes() == expected


def test_every_dtype_of_torch_is_read_with_its_bits(tmp_path):
    import torch
    from ms_weightconv.torchfile import read_torch_file

    names = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
             "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")  # fmt: skip
    state = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in names}
    torch.save(state, tmp_path / "x.bin")

    found = read_torch_file(tmp_path / "x.bin")

    for name, value in state.items():
        assert found[name].read().tobytes() == value.contiguous().view(torch.uint8).numpy().tobytes(), name
