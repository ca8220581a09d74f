"""The model of a run as its newest valid checkpoint holds it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ms_gptmodel
from ms_ckpt import CheckpointStore
from ms_ckpt.mindspore import restore
from run_config import RunConfig, RunConfigError


@dataclass(frozen=True)
class TrainedModel:
    """A model with its trained weights."""

    model: Any
    config: ms_gptmodel.ModelConfig
    step: int


def find_checkpoint(config: RunConfig, step: int | None = None) -> Path:
    """Returns the folder of a run's checkpoint: of `step`, or of the newest valid one."""
    store = CheckpointStore(config.run.checkpoints_path)
    found = step if step is not None else max(store.steps(), default=None)
    if found is None:
        raise RunConfigError(f"{config.run.checkpoints_path}: no valid checkpoint; train first with tools/pretrain.py")
    return config.run.checkpoints_path / f"step-{found:08d}"


def load_trained_model(config: RunConfig, step: int | None = None) -> TrainedModel:
    """Loads the weights of a run, of `step` or of the newest valid checkpoint, verified."""
    folder = config.run.checkpoints_path
    checkpoint = CheckpointStore(folder).load(step)
    if checkpoint is None:
        raise RunConfigError(f"{folder}: no valid checkpoint; train first with tools/pretrain.py")
    model_config = ms_gptmodel.ModelConfig.from_mapping(checkpoint.values["config"]["model"])
    # Without dropout there is no counter either: it belongs to the training state (contract `model`).
    without_dropout = replace(model_config, embedding_dropout=0.0, residual_dropout=0.0, attention_dropout=0.0)
    model = ms_gptmodel.LanguageModel(without_dropout)
    weights = {
        name.removeprefix("model."): tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("model.") and not name.startswith("model.counter.")
    }
    restore(ms_gptmodel.named_parameters(model), weights)
    model.set_train(False)
    return TrainedModel(model, model_config, checkpoint.step)
