"""The configuration of a training run: section `train` of a run's YAML file."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_trainloop.errors import ConfigError

T = TypeVar("T")

SCHEDULES = ("cosine", "linear", "constant")
OPTIMIZERS = ("adamw",)
PRECISIONS = ("float32", "float16", "bfloat16")
MODES = ("graph", "pynative")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained. Every value is checked when the object is made."""

    steps: int
    """Optimizer steps of the whole run; a resumed run ends at the same step."""
    global_batch_size: int
    """Rows a step takes over all ranks and micro-batches."""
    micro_batch_size: int
    """Rows of one forward pass on one rank; accumulation is global_batch_size / (ranks * micro_batch_size)."""
    learning_rate: float
    """Peak rate, reached at the last warm-up step."""
    min_learning_rate: float = 0.0
    """Rate of the last step, where the schedule falls; not used by `constant`."""
    warmup_steps: int = 0
    """Steps of linear warm-up; the last of them has the peak rate."""
    schedule: str = "cosine"
    """Shape after the warm-up: `cosine`, `linear` or `constant`."""
    optimizer: str = "adamw"
    """`adamw`: decoupled weight decay, equal to torch.optim.AdamW."""
    weight_decay: float = 0.1
    """Decay per step is learning rate times this."""
    no_decay: tuple = ("*norm*", "*bias", "*embedding*")  # type: ignore[type-arg]  # from_mapping checks plain classes
    """Parameters whose name matches one of these patterns do not decay; those with fewer than two axes never do."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.95
    """Decay of the mean of squared gradients; 0.95 rather than 0.999, as GPT-3 and Llama were trained."""
    epsilon: float = 1e-8
    """Added to the root of the mean square."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global L2 norm; 0 turns clipping off."""
    precision: str = "float32"
    """Of the model's computation; the step refuses what it cannot do (README, Known limits)."""
    loss_scale: float = 65536.0
    """First scale of the loss in `float16`; other precisions use 1."""
    loss_scale_window: int = 1000
    """Steps without an overflow after which the scale doubles; an overflow halves it, never below 1; 0 keeps it."""
    max_skipped_steps: int = 10
    """So many steps in a row without a finite gradient stop the run; a single one is skipped and counted."""
    seed: int = 0
    """Seed of the run, kept in the saved state; the data order the caller makes should follow it."""
    mode: str = "graph"
    """`graph` compiles the step once; `pynative` runs the same code operator by operator, for debugging."""
    log_every: int = 10
    """Steps between two lines of metrics; the last step is always logged."""
    evaluate_every: int = 0
    """Steps between two evaluations; 0 turns them off; the last step is always evaluated otherwise."""
    evaluation_batches: int = 0
    """Batches an evaluation takes at most; 0 takes all."""
    save_every: int = 0
    """Steps between two saves; 0 saves at the end only."""
    sample_every: int = 0
    """Steps between two rounds of samples; 0 turns them off."""
    tensorboard: bool = False
    """Writes the metrics as TensorBoard event files too (extra `tensorboard`)."""
    allow_changes: tuple = ()  # type: ignore[type-arg]  # from_mapping checks plain classes
    """Fields whose value may differ from the saved state's when resuming; see resume.py for those that always may."""

    def __post_init__(self) -> None:
        """Refuses impossible values with a ConfigError that names the field."""
        for name in ("steps", "global_batch_size", "micro_batch_size", "log_every", "max_skipped_steps"):
            self._expect(name, getattr(self, name) >= 1, "1 or more")
        for name in (
            "warmup_steps",
            "evaluate_every",
            "evaluation_batches",
            "save_every",
            "sample_every",
            "seed",
            "loss_scale_window",
        ):
            self._expect(name, getattr(self, name) >= 0, "0 or more")
        self._expect("steps", self.steps <= 2**24, "at most 16777216, up to which the compiled schedule is exact")
        self._expect("warmup_steps", self.warmup_steps <= self.steps, f"at most train.steps ({self.steps})")
        self._expect("learning_rate", 0 < self.learning_rate < math.inf, "a finite number above 0")
        self._expect(
            "min_learning_rate",
            0 <= self.min_learning_rate <= self.learning_rate,
            f"between 0 and train.learning_rate ({self.learning_rate})",
        )
        self._expect("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more, finite")
        self._expect("beta1", 0 <= self.beta1 < 1, "in [0, 1)")
        self._expect("beta2", 0 < self.beta2 < 1, "in (0, 1)")
        self._expect("epsilon", 0 < self.epsilon < math.inf, "a finite number above 0")
        self._expect("max_grad_norm", 0 <= self.max_grad_norm < math.inf, "0 (off) or a finite number above 0")
        self._expect("loss_scale", 1 <= self.loss_scale <= 2**24, "between 1 and 16777216")
        self._expect(
            "global_batch_size",
            self.global_batch_size % self.micro_batch_size == 0,
            f"a multiple of train.micro_batch_size ({self.micro_batch_size})",
        )
        for name, choices in (
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("precision", PRECISIONS),
            ("mode", MODES),
        ):
            self._expect(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        known = [field.name for field in fields(self)]
        for name in self.allow_changes:
            self._expect("allow_changes", name in known, f"names of fields of section train ({', '.join(known)})")
        for pattern in self.no_decay:
            self._expect("no_decay", isinstance(pattern, str), "patterns such as *bias")

    def accumulation_steps(self, world_size: int) -> int:
        """Returns the micro-batches one rank sums up in a step; ConfigError if `world_size` ranks do not divide it."""
        rows = world_size * self.micro_batch_size
        if self.global_batch_size % rows:
            raise ConfigError(
                f"train.global_batch_size: found {self.global_batch_size}, expected a multiple of {rows}"
                f" ({world_size} ranks * train.micro_batch_size {self.micro_batch_size})"
            )
        return self.global_batch_size // rows

    def _expect(self, name: str, is_met: bool, expected: str) -> None:
        if not is_met:
            raise ConfigError(f"train.{name}: found {getattr(self, name)!r}, expected {expected}")


def from_mapping(cls: type[T], values: Mapping[str, Any], section: str) -> T:
    """Builds the dataclass `cls`; raises ConfigError with the full path of an unknown, missing or mistyped key."""
    kinds, ready = get_type_hints(cls), {}
    for key, value in values.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ConfigError(f"{section}.{key}: unknown key; {hint}")
        kind = kinds[key]
        if isinstance(1.0, kind) and isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):  # YAML 1.1 reads 3e-4 as text
                value = float(value)
        ready[key] = tuple(value) if isinstance(value, list) else value
        if not isinstance(ready[key], kind) or (isinstance(value, bool) and "bool" not in str(kind)):
            raise ConfigError(f"{section}.{key}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in required if name not in ready]:
        raise ConfigError(f"{section}: missing {', '.join(missing)}")
    return cls(**ready)
