# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Low-rank adapters (Hu et al. 2021): W x + scale B A x, with W frozen; put in by name, merged into W and taken out.

Shapes: R rows, I and O widths of a projection, r rank, E experts, G groups.
"""

import fnmatch
import hashlib
import math
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_gptmodel.dropout import CountedPair, Dropout
from ms_gptmodel.errors import ConfigError, WeightsError
from ms_gptmodel.kernels import select
from ms_gptmodel.model import LanguageModel
from ms_gptmodel.moe import ExpertMatrices
from ms_gptmodel.projection import Projection
from ms_gptmodel.weights import named_parameters


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Which matrices get an adapter, and of what size."""

    rank: int = 8
    """Rows of A and columns of B."""
    alpha: float = 16.0
    """B A is multiplied by alpha / rank."""
    uses_rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead, which keeps large ranks alive (Kalajdzievski 2023)."""
    dropout: float = 0.0
    """Rate of dropout on what goes into A, in training."""
    targets: tuple = ("*.attention.query", "*.attention.value")  # type: ignore[type-arg]
    """Patterns over contract names without `.weight`, as `*.attention.*`, `blocks.3.mlp.up`, `*.experts.*`."""

    def __post_init__(self) -> None:
        if isinstance(self.targets, list):
            object.__setattr__(self, "targets", tuple(self.targets))
        if type(self.rank) is not int or self.rank < 1:
            raise ConfigError(f"lora.rank: expected 1 or more, found {self.rank!r}")
        if not 0 < self.alpha < float("inf"):
            raise ConfigError(f"lora.alpha: expected a positive number, found {self.alpha!r}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"lora.dropout: expected 0 or more and below 1, found {self.dropout!r}")
        if not self.targets or not all(isinstance(t, str) and t for t in self.targets):
            raise ConfigError(f"lora.targets: expected a list of patterns, found {self.targets!r}")

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.uses_rslora else self.rank)


class LowRank(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Holder of `weight`: A [r, I] or B [O, r], with the experts in front where there are some."""

    def __init__(self, values: np.ndarray) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.weight = Parameter(Tensor(values), name="weight")


class LoraDropout(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x of any shape -> x with numbers dropped, by a mask that follows from the place's key and the model's call."""

    def __init__(self, rate: float, pair: CountedPair) -> None:
        super().__init__()
        self.drop, self.pair = Dropout(rate), pair

    def construct(self, x: Tensor) -> Tensor:
        factor, addend = self.pair()
        return self.drop(x.reshape(-1, x.shape[-1]), factor, addend).reshape(x.shape)


class LoraProjection(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As Projection, over the same `weight` and `bias`, plus scale (x A^T) B^T; B is zero while it is merged."""

    def __init__(self, inner: Projection, scale: float, a: LowRank, b: LowRank, dropout: LoraDropout | None) -> None:
        super().__init__(auto_prefix=False)
        self.weight, self.bias, self.linear = inner.weight, inner.bias, inner.linear
        self.lora_A, self.lora_B, self.scale, self.dropout = a, b, scale, dropout
        self.merged_b: np.ndarray | None = None  # type: ignore[type-arg]
        self.low = select().Linear()

    def construct(self, rows: Tensor) -> Tensor:
        bias = self.bias
        out = self.linear(rows, self.weight) if bias is None else self.linear(rows, self.weight, bias)
        if self.dropout is not None and self.training:
            rows = self.dropout(rows)
        return out + self.low(self.low(rows, self.lora_A.weight), self.lora_B.weight) * self.scale


class LoraExpertMatrices(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As ExpertMatrices, with an adapter an expert."""

    def __init__(
        self, inner: ExpertMatrices, scale: float, a: LowRank, b: LowRank, dropout: LoraDropout | None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.weight, self.multiply = inner.weight, inner.multiply
        self.lora_A, self.lora_B, self.scale, self.dropout = a, b, scale, dropout
        self.merged_b: np.ndarray | None = None  # type: ignore[type-arg]

    def construct(self, x_GSI: Tensor, expert_G: Tensor | None) -> Tensor:
        weight, a, b = self.weight, self.lora_A.weight, self.lora_B.weight
        if expert_G is not None:
            weight, a, b = (ops.gather(w, expert_G, 0) for w in (weight, a, b))
        out = self.multiply(x_GSI, weight)
        if self.dropout is not None and self.training:
            x_GSI = self.dropout(x_GSI)
        return out + self.multiply(self.multiply(x_GSI, a), b) * self.scale


Adapter = LoraProjection | LoraExpertMatrices


def inject_lora(model: LanguageModel, config: LoraConfig, *, seed: int = 0) -> list[str]:
    """Freezes the model and gives every matrix that `config` names an adapter; returns their names, in order.

    A is drawn as PEFT draws it (uniform in +- 1 / sqrt(in)) from the seed and its name, B is zero: the model's output
    is unchanged. Do it before the model is compiled; only adapters have `requires_grad` afterwards. With dropout, a
    model that has no `counter.forward` gets one.

    Raises ConfigError for a pattern that names no matrix, WeightsError when there are adapters already.
    """
    if lora_adapters(model):
        raise WeightsError("the model has adapters already; merge them, or inject into a fresh model")
    found = {name: cell for name, cell in model.cells_and_names() if isinstance(cell, Projection | ExpertMatrices)}
    chosen: list[str] = []
    for pattern in config.targets:
        matches = [name for name in found if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(f"lora.targets: {pattern!r} names no matrix; there are {', '.join(found)[:400]} ...")
        chosen += [name for name in matches if name not in chosen]
    for parameter in model.get_parameters():
        parameter.requires_grad = False
    if config.dropout > 0 and model.counter is None:
        model.counter = model.fresh_counter()
    for name in chosen:
        inner = found[name]
        *stack, out, into = inner.weight.shape
        digest = hashlib.sha256(f"{seed}:{name}.lora_A.weight".encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        bound = 1 / math.sqrt(into)
        drawn = generator.uniform(-bound, bound, (*stack, config.rank, into)).astype(np.float32)
        a, b = LowRank(drawn), LowRank(np.zeros((*stack, out, config.rank), np.float32))
        for low in (a, b):
            low.weight.set_dtype(inner.weight.dtype)
        kind = LoraExpertMatrices if stack else LoraProjection
        adapter = kind(inner, config.scale, a, b, _dropout(model, config, name))
        adapter.set_train(model.training)
        _replace(model, name, adapter)
    for name, parameter in named_parameters(model).items():
        parameter.name = name
    return chosen


def lora_adapters(model: nn.Cell) -> dict[str, Adapter]:
    """The cells with an adapter, by the name of their matrix without `.weight`."""
    return {name: c for name, c in model.cells_and_names() if isinstance(c, LoraProjection | LoraExpertMatrices)}


def merge_lora(model: LanguageModel) -> None:
    """Adds scale B A to every adapted weight and sets B to zero, in place, so that compiled graphs see both.

    For an output without the adapters' cost, load the merged weights into a model that has none.

    Raises WeightsError when there is no adapter or they are merged already.
    """
    _shift(model, 1.0, is_merged=True)


def unmerge_lora(model: LanguageModel) -> None:
    """Takes scale B A out of the weights again, to rounding. Raises WeightsError when they are not merged."""
    _shift(model, -1.0, is_merged=False)


def adapted_b(adapter: Adapter) -> np.ndarray:  # type: ignore[type-arg]
    """B of an adapter, merged or not."""
    b: np.ndarray = adapter.lora_B.weight.asnumpy().copy() if adapter.merged_b is None else adapter.merged_b  # type: ignore[type-arg]
    return b


def _shift(model: LanguageModel, sign: float, *, is_merged: bool) -> None:
    adapters = lora_adapters(model)
    if not adapters:
        raise WeightsError("the model has no adapters")
    if any((adapter.merged_b is not None) == is_merged for adapter in adapters.values()):
        raise WeightsError(f"the adapters are {'merged already' if is_merged else 'not merged'}")
    for adapter in adapters.values():
        a, b = adapter.lora_A.weight.asnumpy().astype(np.float32), adapted_b(adapter).astype(np.float32)
        weight = adapter.weight.asnumpy().astype(np.float32) + sign * adapter.scale * (b @ a)
        adapter.merged_b = b if is_merged else None
        ops.assign(adapter.weight, Tensor(weight, adapter.weight.dtype))
        ops.assign(adapter.lora_B.weight, Tensor(np.zeros_like(b) if is_merged else b, adapter.lora_B.weight.dtype))


def _dropout(model: LanguageModel, config: LoraConfig, name: str) -> LoraDropout | None:
    if config.dropout == 0 or model.counter is None:
        return None
    text = f"{model.config.dropout_seed}:{model.rank}:{name}.lora_dropout"
    digest = hashlib.sha256(text.encode()).digest()
    key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    return LoraDropout(config.dropout, CountedPair(model.counter, key))


def _replace(model: nn.Cell, name: str, cell: nn.Cell) -> None:
    *path, last = name.split(".")
    parent = model
    for part in path:
        parent = parent[int(part)] if part.isdigit() else getattr(parent, part)
    delattr(parent, last)
    setattr(parent, last, cell)
