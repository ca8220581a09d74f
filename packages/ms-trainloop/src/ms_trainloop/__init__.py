"""A training loop for MindSpore whose every number can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ms_trainloop.__about__ import __version__

if TYPE_CHECKING:
    from ms_trainloop.callbacks import EvaluationCallback, ForensicsCallback, MetricsCallback
    from ms_trainloop.config import TrainConfig, from_mapping
    from ms_trainloop.evaluation import Evaluation, Evaluator, evaluate
    from ms_trainloop.loop import TrainResult, train
    from ms_trainloop.metrics import read_metrics
    from ms_trainloop.rehearsal import Preflight, rehearse
    from ms_trainloop.replay import Replay, replay
    from ms_trainloop.report import write_report
    from ms_trainloop.schedules import learning_rate
    from ms_trainloop.step import StepResult, TrainStep

__all__ = [
    "Evaluation",
    "EvaluationCallback",
    "Evaluator",
    "ForensicsCallback",
    "MetricsCallback",
    "Preflight",
    "Replay",
    "StepResult",
    "TrainConfig",
    "TrainResult",
    "TrainStep",
    "__version__",
    "evaluate",
    "from_mapping",
    "learning_rate",
    "read_metrics",
    "rehearse",
    "replay",
    "train",
    "write_report",
]

_HOMES = {
    "callbacks": ("EvaluationCallback", "ForensicsCallback", "MetricsCallback"),
    "config": ("TrainConfig", "from_mapping"),
    "evaluation": ("Evaluation", "Evaluator", "evaluate"),
    "loop": ("TrainResult", "train"),
    "metrics": ("read_metrics",),
    "rehearsal": ("Preflight", "rehearse"),
    "replay": ("Replay", "replay"),
    "report": ("write_report",),
    "schedules": ("learning_rate",),
    "step": ("StepResult", "TrainStep"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for, so that importing the package does not import MindSpore."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"ms_trainloop.{module}"), name)
    raise AttributeError(f"module 'ms_trainloop' has no attribute {name!r}")
