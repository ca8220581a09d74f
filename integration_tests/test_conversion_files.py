"""What else of a folder survives a conversion: shards, dtypes, tokenizer and end ids, held against transformers."""

import json
from typing import Any

import ms_weightconv
import pytest

pytestmark = pytest.mark.reference


def their_model(config: str) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 112, "max_position_embeddings": 64, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**sizes))


def test_bfloat16_saved_in_shards_by_transformers_comes_back_bit_for_bit(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    model = their_model("Qwen3Config").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")

    ms_weightconv.convert(tmp_path / "theirs", tmp_path / "ours", to="mindspore", progress=False)
    ms_weightconv.convert(tmp_path / "ours", tmp_path / "back", to="huggingface", progress=False)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto")

    assert back.dtype == torch.bfloat16
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in back.state_dict().items())


def test_casts_round_as_torch_does(tmp_path):
    import torch
    from safetensors.torch import load_file

    their_model("LlamaConfig").save_pretrained(tmp_path / "theirs")
    original = load_file(tmp_path / "theirs" / "model.safetensors")

    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        ms_weightconv.convert(tmp_path / "theirs", tmp_path / name, to="huggingface", dtype=name, progress=False)
        cast = load_file(tmp_path / name / "model.safetensors")
        assert all(torch.equal(cast[key], value.to(dtype)) for key, value in original.items())


def test_tokenizer_and_end_ids_reach_transformers(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer, GenerationConfig

    their_model("LlamaConfig").save_pretrained(tmp_path / "theirs")
    ours = tmp_path / "converted"
    ms_weightconv.convert(tmp_path / "theirs", ours, to="mindspore", progress=False)
    tokenizer = Tokenizer(
        models.WordLevel({"hello": 0, "<s>": 1, "<end>": 2, "world": 3, "<turn>": 4}, unk_token="hello")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "<end>", "<turn>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    stage = tmp_path / "ours"
    stage.mkdir()
    (stage / "model.safetensors").write_bytes((ours / "model.safetensors").read_bytes())
    values = json.loads((ours / "config.json").read_text()) | {
        "eos_token_id": [2, 4],
        "tokenizer_fingerprint": "sha256:" + "a" * 64,
    }
    (stage / "config.json").write_text(json.dumps(values))

    ms_weightconv.convert(
        stage, tmp_path / "back", to="huggingface", tokenizer=tmp_path / "tokenizer.json", progress=False
    )
    loaded = AutoTokenizer.from_pretrained(tmp_path / "back")
    generation = GenerationConfig.from_pretrained(tmp_path / "back")

    assert loaded("hello world")["input_ids"] == [0, 3]
    assert (loaded.eos_token, loaded.bos_token, loaded.model_max_length) == ("<end>", "<s>", 64)
    assert generation.eos_token_id == [2, 4]
