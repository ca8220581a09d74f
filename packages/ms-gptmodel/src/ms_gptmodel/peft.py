"""Adapters in the files of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from ms_gptmodel.errors import WeightsError
from ms_gptmodel.lora import Adapter, LoraConfig, adapted_b, inject_lora, lora_adapters
from ms_gptmodel.model import LanguageModel

_PREFIX = "base_model.model."
# Families whose modules in transformers are ours one by one; others are fused there (GPT-2) or go by other names.
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi")
_MODULES = {
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}  # fmt: skip
_PHI = {"attention.output": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}


def save_adapters(model: LanguageModel, config: LoraConfig, folder: str | Path) -> None:
    """Writes the adapters of `model`, merged or not, so that PEFT puts them onto the model of transformers.

    For Llama, Mistral, Qwen 2 and 3, Gemma and Phi the modules have transformers' names; for other families, and for
    experts, whose matrices transformers fuses, they keep contract names, which `load_adapters` reads alike.

    Raises WeightsError when there is no adapter, or safetensors is not installed.
    """
    folder, adapters = Path(folder), lora_adapters(model)
    if not adapters:
        raise WeightsError("the model has no adapters")
    names = {name: _module_name(model, name) for name in adapters}
    arrays = {}
    for name, adapter in adapters.items():
        for part, values in (("lora_A", adapter.lora_A.weight.asnumpy()), ("lora_B", adapted_b(adapter))):
            arrays[f"{_PREFIX}{names[name]}.{part}.weight"] = np.ascontiguousarray(values)
    settings: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": None, "r": config.rank,
        "lora_alpha": config.alpha, "lora_dropout": config.dropout, "use_rslora": config.uses_rslora, "bias": "none",
        "fan_in_fan_out": False, "inference_mode": True, "target_modules": sorted(names.values()),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    _safetensors().save_file(arrays, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    text = json.dumps(settings, indent=2, allow_nan=False) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")


def load_adapters(model: LanguageModel, folder: str | Path) -> LoraConfig:
    """Puts the adapters of a PEFT folder into a model that has none, frozen as `inject_lora` leaves it.

    Modules may have transformers' names (as PEFT writes them, for the families that `save_adapters` lists) or those of
    contract `model` (as converters write them, for any family).

    Raises WeightsError, naming them, for files, keys or shapes that do not fit, and for kinds of adapters other than
    plain LoRA (biases, DoRA, ranks by pattern); then the model was not changed.
    """
    folder = Path(folder)
    values, arrays = _read(folder)
    for key, allowed in (("peft_type", ("LORA",)), ("bias", ("none",)), ("use_dora", (None, False)),
                         ("fan_in_fan_out", (None, False)), ("rank_pattern", (None, {})), ("alpha_pattern", (None, {})),
                         ("modules_to_save", (None, [])), ("lora_bias", (None, False))):  # fmt: skip
        if values.get(key) not in allowed:
            raise WeightsError(f"{folder}/adapter_config.json: {key} {values[key]!r} is not supported")
    shapes = {name[:-7]: p.shape for name, p in model.parameters_and_names() if name.endswith(".weight")}
    theirs = {_module_name(model, name): name for name in shapes} | {name: name for name in shapes}
    found: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        match = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.(lora_[AB])\.weight", key)
        if match is None or match[1] not in theirs:
            raise WeightsError(f"{folder}/adapter_model.safetensors: {key}: no matrix of this model has that name")
        pair = found.setdefault(theirs[match[1]], {})
        if match[2] in pair:
            raise WeightsError(f"{folder}/adapter_model.safetensors: {key}: {theirs[match[1]]} stands there twice")
        pair[match[2]] = array
    rank = values["r"]
    for name, pair in found.items():
        *stack, out, into = shapes[name]
        wanted = {"lora_A": (*stack, rank, into), "lora_B": (*stack, out, rank)}
        if {part: array.shape for part, array in pair.items()} != wanted:
            sizes = {part: array.shape for part, array in pair.items()}
            raise WeightsError(f"{folder}/adapter_model.safetensors: {name} has {sizes}, expected {wanted}")
    config = LoraConfig(
        rank=rank,
        alpha=float(values["lora_alpha"]),
        uses_rslora=bool(values.get("use_rslora")),
        dropout=float(values.get("lora_dropout") or 0.0),
        targets=tuple(found),
    )
    inject_lora(model, config)
    adapters: dict[str, Adapter] = lora_adapters(model)
    for name, pair in found.items():
        for low, part in ((adapters[name].lora_A, "lora_A"), (adapters[name].lora_B, "lora_B")):
            low.weight.set_data(Tensor(pair[part], dtype=low.weight.dtype))
    return config


def _module_name(model: LanguageModel, name: str) -> str:
    """transformers' name of a matrix, where it has one of its own."""
    kind, match = model.config.model_type, re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    modules = _MODULES | _PHI if kind == "phi" else _MODULES
    if kind not in _LLAMA_LIKE or match is None or match[2] not in modules:
        return name
    return f"model.layers.{match[1]}.{modules[match[2]]}"


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise WeightsError(f"{folder / name}: no such file")
    try:
        values = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{folder}/adapter_config.json: not a JSON file: {error}") from error
    if not isinstance(values, dict) or type(values.get("r")) is not int or "lora_alpha" not in values:
        raise WeightsError(f"{folder}/adapter_config.json: expected an object with r and lora_alpha")
    try:
        arrays: dict[str, Any] = _safetensors().load_file(folder / "adapter_model.safetensors")
    except importlib.import_module("safetensors").SafetensorError as error:
        raise WeightsError(f"{folder}/adapter_model.safetensors: not a whole safetensors file: {error}") from error
    return values, arrays


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise WeightsError('adapters in files need safetensors: pip install "ms-gptmodel[safetensors]"') from error
