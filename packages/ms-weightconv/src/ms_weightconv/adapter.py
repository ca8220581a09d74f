"""PEFT's LoRA folders both ways: the names of a family in transformers, or those of contract `model`.

An adapter adds scale * B A to a matrix. PEFT keeps A `[r, in]` and B `[out, r]` whatever way the matrix is stored:
only fusing changes anything. A fused projection's B is cut like its matrix and its parts share A. Back, parts whose
A differ need an A that holds all of them, with zeros in B: rank and alpha of the whole adapter grow alike, and the
scale stays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ms_weightconv.contract import FORMAT, Config, read_config
from ms_weightconv.errors import ConfigError, RuleError, SourceError
from ms_weightconv.families import find_family
from ms_weightconv.family import Family
from ms_weightconv.mapping import from_huggingface
from ms_weightconv.parameters import part_width
from ms_weightconv.rules import Move, Rule
from ms_weightconv.shards import read_json
from ms_weightconv.steps import Halves, Split, Transpose, Ungroup
from ms_weightconv.target import staged_folder, write_document
from ms_weightconv.tensor import Tensor
from ms_weightconv.tensorfile import read_tensor_file, write_tensor_file
from ms_weightconv.torchfile import read_torch_file
from ms_weightconv.words import Words

CONFIG_FILE, WEIGHTS_FILE, OLD_WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_ORIGINAL = "huggingface_config"
_PREFIX = "base_model.model."
_LIMITS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("peft_type", ("LORA",)), ("bias", (None, "none")), ("use_dora", (None, False)), ("lora_bias", (None, False)),
    ("rank_pattern", (None, {})), ("alpha_pattern", (None, {})), ("modules_to_save", (None, [])),
    ("target_parameters", (None, [])), ("trainable_token_indices", (None,)),
)  # fmt: skip


@dataclass(frozen=True)
class _Pair:
    dtype: str
    a: Words
    b: Words


def convert_adapter(
    source: Path, target: Path, *, to: str, base: Path, family: str | Family | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Converts a PEFT folder with a LoRA adapter.

    Args:
        source: the folder with adapter_config.json and adapter_model.safetensors (or .bin).
        target: the folder to write.
        to: `huggingface` (modules as transformers names them) or `mindspore` (names of contract `model`).
        base: folder of the base model, of either layout; only its config.json is read.
        family: as in `convert`.
        overwrite: replace a folder at `target`.

    Returns:
        The adapter_config.json that was written.

    Raises:
        SourceError, ConfigError: the folder cannot be read, or holds more than a plain LoRA adapter.
        RuleError: a module is none of the base model's, or cannot have an adapter on the other side.
    """
    source, target = Path(source), Path(target)
    if to not in ("huggingface", "mindspore"):
        raise ConfigError(f"to: found {to!r}, expected huggingface or mindspore")
    values, pairs = _read(source)
    chosen, config = _base(Path(base), family)
    moves = [move for rule in chosen.rules if isinstance(rule, Rule) for move in rule.moves(config) if _is_matrix(move)]
    rank, factor = int(values["r"]), 1
    if to == "mindspore":
        converted = _to_contract(pairs, moves, config, str(source))
        original = values
        values = {key: value for key, value in values.items() if key != "layers_pattern"}
        values |= {"fan_in_fan_out": False, _ORIGINAL: original}
    else:
        converted, factor = _to_family(pairs, moves, config, rank, str(source))
        original = values.pop(_ORIGINAL, {})
        values = _restored(values, original, factor, any(Transpose() in move.steps for move in moves))
    if to == "mindspore" or not (original and factor == 1):
        values["target_modules"] = sorted(converted)
    tensors = {
        f"{_PREFIX}{name}.lora_{part}.weight": _tensor(pair.dtype, words)
        for name, pair in converted.items()
        for part, words in (("A", pair.a), ("B", pair.b))
    }
    with staged_folder(target, source, is_overwritten=overwrite) as stage:
        list(write_tensor_file(stage / WEIGHTS_FILE, tensors, {"format": "pt"}))
        write_document(stage / CONFIG_FILE, values)
    return values


def _tensor(dtype: str, words: Words) -> Tensor:
    return Tensor(dtype, words.shape, lambda: words)


def _restored(values: dict[str, Any], original: Mapping[str, Any], factor: int, is_turned: bool) -> dict[str, Any]:
    """The config of the other side: the original one where nothing but names has changed."""
    same = all(original.get(key) == values.get(key) for key in ("r", "lora_alpha", "use_rslora"))
    if original and same and factor == 1:
        return dict(original)
    grown = math.sqrt(factor) if values.get("use_rslora") else factor
    alpha = values["lora_alpha"] if factor == 1 else values["lora_alpha"] * grown
    return {**values, "r": values["r"] * factor, "lora_alpha": alpha, "fan_in_fan_out": is_turned}


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, _Pair]]:
    values = read_json(folder / CONFIG_FILE)
    for key, allowed in _LIMITS:
        if values.get(key) not in allowed:
            raise ConfigError(f"{folder / CONFIG_FILE}: {key}: found {values[key]!r:.100}; plain LoRA is converted")
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if type(rank) is not int or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise ConfigError(f"{folder / CONFIG_FILE}: r {rank!r:.50} and lora_alpha {alpha!r:.50}: expected numbers")
    path = folder / WEIGHTS_FILE
    is_new = path.exists() or not (folder / OLD_WEIGHTS_FILE).exists()
    tensors = read_tensor_file(path) if is_new else read_torch_file(folder / OLD_WEIGHTS_FILE)
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        short = key.removesuffix(".weight").removesuffix(".default")
        module, _, part = short.removeprefix(_PREFIX).rpartition(".")
        if not key.startswith(_PREFIX) or part not in ("lora_A", "lora_B") or len(tensor.shape) != 2:
            raise SourceError(f"{folder}: {key} {list(tensor.shape)}: expected {_PREFIX}MODULE.lora_A.weight or lora_B")
        parts.setdefault(module, {})[part] = tensor
    pairs = {}
    for module, found in parts.items():
        if len(found) != 2 or found["lora_A"].dtype != found["lora_B"].dtype:
            raise SourceError(f"{folder}: {module}: expected lora_A and lora_B of one dtype")
        a, b = found["lora_A"].read(), found["lora_B"].read()
        if a.shape[0] != rank or b.shape[1] != rank:
            raise SourceError(f"{folder}: {module}: A {list(a.shape)}, B {list(b.shape)} do not have rank {rank}")
        pairs[module] = _Pair(found["lora_A"].dtype, a, b)
    if not pairs:
        raise SourceError(f"{folder}: holds no adapters")
    return values, pairs


def _base(folder: Path, asked: str | Family | None) -> tuple[Family, Config]:
    path = folder / "config.json" if folder.is_dir() else folder
    values = read_json(path)
    if values.get("format") == FORMAT:
        config = read_config(values, str(path))
        return find_family(config["model_type"], asked, str(path)), config
    family = find_family(values.get("model_type"), asked, str(path))
    return family, from_huggingface(family, values, None, str(path)).config


def _is_matrix(move: Move) -> bool:
    """Whether an adapter of PEFT can sit on what a rule moves: a projection, whole or fused."""
    is_weight = all(name.endswith(".weight") and "norm" not in name for name in (*move.theirs, *move.ours))
    plain = all(isinstance(step, Transpose | Split | Ungroup | Halves) for step in move.steps)
    return is_weight and plain and len(move.theirs) == 1


def _modules(names: tuple[str, ...]) -> list[str]:
    return [name.removesuffix(".weight") for name in names]


def _cut(move: Move) -> Move:
    """What becomes of B: its rows are those of the matrix once it is `[out, in]`."""
    return Move(move.theirs, move.ours, tuple(step for step in move.steps if not isinstance(step, Transpose)))


def _to_contract(pairs: Mapping[str, _Pair], moves: list[Move], config: Config, what: str) -> dict[str, _Pair]:
    by_module = {_modules(move.theirs)[0]: move for move in moves}
    _check_known(pairs, by_module, what)
    converted = {}
    for module, pair in pairs.items():
        parts = _cut(by_module[module]).forward([pair.b], config)
        for name, b in zip(_modules(by_module[module].ours), parts, strict=True):
            converted[name] = _Pair(pair.dtype, pair.a, np.ascontiguousarray(b))
    return converted


def _to_family(
    pairs: Mapping[str, _Pair], moves: list[Move], config: Config, rank: int, what: str
) -> tuple[dict[str, _Pair], int]:
    """The other way; the second value is by what the rank grew."""
    _check_known(pairs, {name: move for move in moves for name in _modules(move.ours)}, what)
    groups = []
    for move in moves:
        found = [pairs.get(name) for name in _modules(move.ours)]
        present = [pair for pair in found if pair is not None]
        if present:
            shared = all(np.array_equal(pair.a, present[0].a) for pair in present)
            groups.append((move, found, present, shared))
    factor = max((len(present) for _, _, present, shared in groups if not shared), default=1)
    converted = {}
    for move, found, present, shared in groups:
        a, parts = _joined(move, found, present, shared, rank, rank * factor, config)
        if len({pair.dtype for pair in present}) > 1:
            raise RuleError(f"{what}: {', '.join(_modules(move.ours))}: adapters of different dtypes")
        b = _cut(move).backward(parts, config)[0]
        converted[_modules(move.theirs)[0]] = _Pair(present[0].dtype, a, np.ascontiguousarray(b))
    return converted, factor


def _joined(
    move: Move, found: list[_Pair | None], present: list[_Pair], shared: bool, rank: int, wanted: int, config: Config
) -> tuple[Words, list[Words]]:
    """One A for all parts, and each part's B against it; zero words are zeros of every float dtype."""
    a = np.zeros((wanted, present[0].a.shape[1]), present[0].a.dtype)
    parts, at = [], 0
    for name, pair in zip(_modules(move.ours), found, strict=True):
        rows = _rows(name, config) if pair is None else pair.b.shape[0]
        b = np.zeros((rows, wanted), a.dtype)
        if pair is not None:
            a[at : at + rank] = pair.a
            b[:, at : at + rank] = pair.b
            at += 0 if shared else rank
        parts.append(b)
    return a, parts


def _rows(name: str, config: Config) -> int:
    return part_width(config, name.rpartition(".")[2])


def _check_known(pairs: Mapping[str, _Pair], known: Mapping[str, Move], what: str) -> None:
    if unknown := [name for name in pairs if name not in known]:
        raise RuleError(
            f"{what}: no projection of the base model, or one that cannot be converted: {'; '.join(unknown)}"
        )
