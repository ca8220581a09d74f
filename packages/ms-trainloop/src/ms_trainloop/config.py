"""The configuration of a training run: section `train` of a run's YAML file."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_trainloop.errors import ConfigError

T = TypeVar("T")

SCHEDULES = ("cosine", "linear", "constant", "inverse_sqrt", "polynomial", "wsd", "cosine_restarts")
OPTIMIZERS = ("adamw", "sgd", "muon")
PRECISIONS = ("float32", "float16", "bfloat16")
PRECISION_LEVELS = ("O1", "O2", "O3")
STATE_TYPES = ("float32", "bfloat16")
MODES = ("graph", "pynative")
WANDB_MODES = ("off", "offline", "online")
PREFLIGHTS = ("batch", "full")
SPIKE_ACTIONS = ("off", "skip", "rollback")
_LARGEST_BFLOAT16_BETA = 0.99
_CHOICES = {
    "schedule": SCHEDULES,
    "optimizer": OPTIMIZERS,
    "optimizer_state": STATE_TYPES,
    "precision": PRECISIONS,
    "precision_level": PRECISION_LEVELS,
    "mode": MODES,
    "spike_action": SPIKE_ACTIONS,
    "preflight": PREFLIGHTS,
    "wandb": WANDB_MODES,
}


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """What differs for the parameters whose name matches; the first group that matches a name counts."""

    pattern: str
    """Shell-style pattern of whole parameter names, such as `*embedding*`; one that matches none is refused."""
    learning_rate_factor: float = 1.0
    """Their rate is the schedule's times this."""
    weight_decay: float | None = None
    """Their decay, whatever `no_decay` says; without it the usual rule."""
    optimizer: str | None = None
    """Their rule (`adamw`, `sgd` or `muon`); without it the run's."""

    def __post_init__(self) -> None:
        """Refuses impossible values with a ConfigError that names the field."""
        if not 0 <= self.learning_rate_factor < math.inf:
            raise ConfigError(f"train.groups: learning_rate_factor {self.learning_rate_factor}, expected 0 or more")
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"train.groups: weight_decay {self.weight_decay}, expected 0 or more, finite")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"train.groups: optimizer {self.optimizer!r}, expected one of {', '.join(OPTIMIZERS)}")


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
    """Shape after the warm-up: one of SCHEDULES, with their formulas in schedules.py."""
    polynomial_power: float = 2.0
    """Exponent of `polynomial`."""
    decay_steps: int = 0
    """The steps at the end in which `wsd` falls from the peak to the minimum; it needs at least one."""
    decay_shape: str = "linear"
    """How `wsd` falls: `linear` or `sqrt` (1 - sqrt(p), Haegele et al. 2024)."""
    restart_steps: int = 0
    """Steps of the first cycle of `cosine_restarts`, 2 or more; each begins at the peak and ends at the minimum."""
    restart_factor: int = 1
    """Each cycle of `cosine_restarts` is so many times as long as the one before."""
    optimizer: str = "adamw"
    """`adamw` or `sgd`, equal to torch's, or `muon`: Muon for matrices, AdamW for the rest."""
    optimizer_state: str = "float32"
    """Type of the optimizer's states; `bfloat16` halves them and needs betas of at most 0.99, or they would freeze."""
    momentum: float = 0.95
    """Of `sgd` and `muon`."""
    nesterov: bool = True
    """Whether `sgd` and `muon` look one step ahead."""
    muon_exclude: tuple = ("*embedding*", "lm_head*")  # type: ignore[type-arg]
    """Matrices that take AdamW in a `muon` run: tables and the head, as Muon's authors have it."""
    groups: tuple = ()  # type: ignore[type-arg]
    """Parameter groups: a list of ParameterGroup, or of mappings with its fields."""
    frozen: tuple = ()  # type: ignore[type-arg]
    """Parameters whose name matches one of these patterns are not trained; a pattern that matches none is refused."""
    ema_decay: float = 0.0
    """Keeps a running average of the weights, average = d * average + (1 - d) * weight after each update; 0 is off."""
    evaluate_ema: bool = False
    """Evaluates and samples with the running average in place of the weights."""
    weight_decay: float = 0.1
    """Decay per step is learning rate times this (`sgd`: added to the gradient, as torch does)."""
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
    """Of the model's computation: `float32`, `float16`, or `bfloat16` (on Ascend)."""
    precision_level: str = "O2"
    """What is half, see precision.py: `O1` multiplications, `O2` all with float32 masters, `O3` all without."""
    keep_float32: tuple = ("*norm*", "*router*")  # type: ignore[type-arg]
    """Parameters whose name matches one of these patterns stay float32 in every level."""
    loss_scale: float = 65536.0
    """First scale of the loss in `float16`; other precisions use 1."""
    loss_scale_window: int = 1000
    """Steps without an overflow after which the scale doubles; an overflow halves it; 0 keeps it as it is."""
    loss_scale_floor: float = 1.0
    """The scale never falls below this; a run that overflows there is ended by max_skipped_steps."""
    max_skipped_steps: int = 10
    """So many steps in a row without a finite gradient stop the run; a single one is skipped and counted."""
    preflight: str = "batch"
    """What is checked before the first step: the first `batch` and loss, or with `full` also memory, every gradient, \
and that ten steps on one repeated batch lower the loss (undone to the bit)."""
    forensics: bool = True
    """Writes a record of the first step that is not finite into the run's folder, from which it can be run again."""
    spike_action: str = "off"
    """What a step does whose loss is a spike: nothing (`off`), `skip` it, or `rollback` to the last checkpoint and \
pass over the data up to and including it."""
    spike_window: int = 50
    """Steps whose losses a spike is measured against; before that many there is none."""
    spike_deviations: float = 6.0
    """A loss is a spike above mean + this * max(standard deviation, 1% of the mean) of the window."""
    max_rollbacks: int = 5
    """So many rollbacks in a run; one more ends it."""
    seed: int = 0
    """Seed of the run, kept in the saved state; the data order the caller makes should follow it."""
    mode: str = "graph"
    """`graph` compiles the step once; `pynative` runs the same code operator by operator, for debugging."""
    compile_cache: str = ""
    """Folder that keeps compiled steps, one for each hash of all they depend on (graph_cache.py); empty: none."""
    max_minutes: float = 0.0
    """Wall time of one call of `train`, compiling included; then it saves and ends with code 75; 0 is without limit."""
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
    wandb: str = "off"
    """Logs the metrics to Weights & Biases too (extra `wandb`): `offline` writes them only, `online` sends them."""
    wandb_project: str = "ms-trainloop"
    """Project of the Weights & Biases run."""
    peak_tflops: float = 0.0
    """Peak of one device in TFLOPS, measured or known; 0: that of the device's name in mfu.py, or no MFU."""
    allow_changes: tuple = ()  # type: ignore[type-arg]  # from_mapping checks plain classes
    """Fields whose value may differ from the saved state's when resuming; see resume.py for those that always may."""

    def __post_init__(self) -> None:
        """Refuses impossible values with a ConfigError that names the field."""
        for name in (
            "steps",
            "global_batch_size",
            "micro_batch_size",
            "log_every",
            "max_skipped_steps",
            "spike_window",
        ):
            self._expect(name, getattr(self, name) >= 1, "1 or more")
        for name in (
            "warmup_steps",
            "evaluate_every",
            "evaluation_batches",
            "save_every",
            "sample_every",
            "seed",
            "loss_scale_window",
            "decay_steps",
            "restart_steps",
            "max_rollbacks",
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
        self._check_schedule()
        self._expect("peak_tflops", 0 <= self.peak_tflops < math.inf, "0 (that of the device) or a number above 0")
        self._expect("max_minutes", 0 <= self.max_minutes < math.inf, "0 (no limit) or a finite number above 0")
        self._expect("spike_deviations", 0 < self.spike_deviations < math.inf, "a finite number above 0")
        self._expect("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self._expect("ema_decay", 0 <= self.ema_decay < 1, "in [0, 1)")
        self._expect("evaluate_ema", not self.evaluate_ema or self.ema_decay > 0, "false while train.ema_decay is 0")
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
        self._expect(
            "loss_scale_floor", 0 < self.loss_scale_floor <= self.loss_scale, f"above 0, up to {self.loss_scale}"
        )
        for name, choices in _CHOICES.items():
            self._expect(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        if self.optimizer_state == "bfloat16":
            for name in ("beta1", "beta2", "momentum"):
                is_met = getattr(self, name) <= _LARGEST_BFLOAT16_BETA
                self._expect(name, is_met, "at most 0.99 where train.optimizer_state is bfloat16, of 8 bits")
        known = [field.name for field in fields(self)]
        for name in self.allow_changes:
            self._expect("allow_changes", name in known, f"names of fields of section train ({', '.join(known)})")
        for name in ("no_decay", "muon_exclude", "frozen", "keep_float32"):
            self._expect(name, all(isinstance(each, str) for each in getattr(self, name)), "patterns such as *bias")
        for i, group in enumerate(self.groups):
            if not isinstance(group, Mapping | ParameterGroup):
                raise ConfigError(f"train.groups[{i}]: expected keys and values, found {group!r}")
        groups = tuple(
            group if isinstance(group, ParameterGroup) else from_mapping(ParameterGroup, group, f"train.groups[{i}]")
            for i, group in enumerate(self.groups)
        )
        object.__setattr__(self, "groups", groups)  # mappings of a YAML file become groups

    def _check_schedule(self) -> None:
        self._expect("polynomial_power", 0 < self.polynomial_power < math.inf, "a finite number above 0")
        self._expect("decay_shape", self.decay_shape in ("linear", "sqrt"), "linear or sqrt")
        self._expect("restart_factor", self.restart_factor >= 1, "1 or more")
        if self.schedule == "wsd":
            most = self.steps - max(self.warmup_steps, 1)
            self._expect("decay_steps", 1 <= self.decay_steps <= most, f"1 ... {most}, the steps after the warm-up")
        if self.schedule == "cosine_restarts":
            self._expect("restart_steps", self.restart_steps >= 2, "2 or more for schedule cosine_restarts")

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
    if not isinstance(values, Mapping):
        raise ConfigError(f"{section}: expected keys and values, found {values!r}")
    kinds, ready = get_type_hints(cls), {}
    for key, value in values.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ConfigError(f"{section}.{key}: unknown key; {hint}")
        ready[key], kind = tuple(value) if isinstance(value, list) else value, kinds[key]
        if isinstance(1.0, kind) and type(value) in (int, str):
            with suppress(ValueError):  # YAML 1.1 reads 3e-4 as text
                ready[key] = float(value)
        if not isinstance(ready[key], kind) or (isinstance(value, bool) and "bool" not in str(kind)):
            raise ConfigError(f"{section}.{key}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    if missing := [f.name for f in fields(cls) if f.name not in ready and f.default is f.default_factory]:  # type: ignore[arg-type]
        raise ConfigError(f"{section}: missing {', '.join(missing)}")
    return cls(**ready)
