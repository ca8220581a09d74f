"""Our adapters held against PEFT itself: it reads the folder that we write, and we read the one that it writes."""

from pathlib import Path
from typing import Any

import ms_gptmodel
import numpy as np
import pytest
from mindspore import Tensor
from ms_gptmodel.lora import LoraConfig, inject_lora, lora_adapters
from ms_gptmodel.peft import load_adapters, save_adapters
from ms_weightconv import convert
from ms_weightconv.adapter import convert_adapter

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT asks transformers for it
]

TOLERANCE = 1e-5
SIZES = {
    "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SIZES),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "head_dim": 16}),
    "phi": ("PhiForCausalLM", {**SIZES, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
}
IDS = np.random.default_rng(3).integers(3, 48, (2, 40)).astype(np.int32)


@pytest.fixture(params=MODELS)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """A model of transformers, and a maker of ours with its weights."""
    return models(*MODELS[request.param], tmp_path)


def models(kind: str, values: dict[str, Any], tmp_path: Path) -> tuple[Any, Any]:
    import torch
    import transformers

    torch.manual_seed(5)
    theirs = getattr(transformers, kind)(getattr(transformers, kind).config_class(**values)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", to="mindspore")

    def ours() -> ms_gptmodel.LanguageModel:
        model = ms_gptmodel.LanguageModel(ms_gptmodel.load_config(tmp_path / "ours"))
        ms_gptmodel.load_weights(model, ms_gptmodel.read_weights(tmp_path / "ours/model.safetensors"))
        return model

    return theirs, ours


def their_logits(model: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(IDS.astype(np.int64))).logits.numpy()


def our_logits(model: ms_gptmodel.LanguageModel) -> np.ndarray:
    return model(Tensor(IDS)).asnumpy()


@pytest.mark.parametrize("is_rs", [False, True])
def test_peft_puts_our_adapters_onto_transformers_model(base, tmp_path, is_rs):
    peft = pytest.importorskip("peft")
    theirs, make = base
    config = LoraConfig(
        rank=4,
        alpha=6.0,
        uses_rslora=is_rs,
        dropout=0.1,
        targets=("*.attention.query", "*.attention.output", "*.mlp.*"),
    )
    ours = make()
    inject_lora(ours, config)
    generator = np.random.default_rng(2)
    for adapter in lora_adapters(ours).values():
        b = adapter.lora_B.weight
        b.set_data(Tensor(generator.standard_normal(b.shape).astype(np.float32) * 0.2))
    before = their_logits(theirs)
    save_adapters(ours, config, tmp_path / "adapter")

    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()

    read = wrapped.peft_config["default"]
    assert (read.r, read.lora_alpha, read.lora_dropout, read.use_rslora) == (4, 6.0, 0.1, is_rs)
    assert np.abs(before - their_logits(wrapped)).max() > 100 * TOLERANCE
    assert np.abs(our_logits(ours) - their_logits(wrapped)).max() < TOLERANCE


def with_adapters_of_peft(theirs: Any, folder: Path, **settings: Any) -> Any:
    """The model of transformers with random adapters, which are saved to `folder`."""
    import torch

    peft = pytest.importorskip("peft")
    common = {"r": 3, "lora_alpha": 5, "lora_dropout": 0.05, "task_type": "CAUSAL_LM"}
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(**common, **settings)).eval()
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if ".lora_" in name:
                value.copy_(torch.randn(value.shape) * 0.2)
    wrapped.save_pretrained(folder)
    return wrapped


@pytest.mark.parametrize("is_rs", [False, True])
def test_we_put_pefts_adapters_onto_our_model(base, tmp_path, is_rs):
    theirs, make = base
    wrapped = with_adapters_of_peft(theirs, tmp_path / "adapter", use_rslora=is_rs, target_modules=["q_proj", "v_proj"])
    ours = make()
    before = our_logits(ours)

    config = load_adapters(ours, tmp_path / "adapter")

    assert (config.rank, config.alpha, config.dropout, config.uses_rslora) == (3, 5.0, 0.05, is_rs)
    assert len(lora_adapters(ours)) == 4
    assert np.abs(before - our_logits(ours)).max() > 100 * TOLERANCE
    assert np.abs(our_logits(ours) - their_logits(wrapped)).max() < TOLERANCE


def test_a_converted_adapter_of_a_family_with_fused_projections_is_put_onto_our_model(tmp_path):
    sizes = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}
    sizes["eos_token_id"] = 2
    theirs, make = models("GPT2LMHeadModel", sizes, tmp_path)
    settings = {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True}
    wrapped = with_adapters_of_peft(theirs, tmp_path / "adapter", **settings)
    convert_adapter(tmp_path / "adapter", tmp_path / "contract", to="mindspore", base=tmp_path / "theirs")
    ours = make()
    before = our_logits(ours)

    config = load_adapters(ours, tmp_path / "contract")

    assert config.dropout == 0.05
    assert len(lora_adapters(ours)) == 8  # query, key and value are three of ours
    assert np.abs(before - our_logits(ours)).max() > 100 * TOLERANCE
    assert np.abs(our_logits(ours) - their_logits(wrapped)).max() < TOLERANCE
