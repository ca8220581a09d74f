"""A callback for stock `mindspore.train.Model`: saves all that a resumed run needs, and puts it back.

This module and `mindspore.py` are the ones that touch MindSpore; this one imports it at once.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from ms_ckpt.async_saver import AsyncSaver
from ms_ckpt.errors import CkptError, MismatchError, ValuesError
from ms_ckpt.mindspore import live_views, load_into_parameters
from ms_ckpt.rules import LoadRules
from ms_ckpt.store import CheckpointStore

_log = logging.getLogger(__name__)
_SCALE_COUNTERS = ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step")
"""What changes in a DynamicLossScaleManager that lives in Python."""


class CheckpointCallback(Callback):  # type: ignore[misc]
    """Saves weights, optimizer state, steps, the schedule's position, loss scale, data position and random state.

        checkpoints = CheckpointCallback(CheckpointStore("checkpoints"), every_steps=100)
        initial_epoch = checkpoints.restore(model, dataset)
        model.train(epochs, dataset, callbacks=[checkpoints], initial_epoch=initial_epoch)

    The same lines start a run and resume it. Tensors are copied when a step ends and written beside the training; an
    error surfaces at the next save.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        every_steps: int = 0,
        every_seconds: float = 0,
        values: Callable[[], Mapping[str, Any]] | None = None,
        network: nn.Cell | None = None,
    ) -> None:
        """Saves into `store`, at the end of training in any case.

        Args:
            store: Where to; its configuration decides what is kept.
            every_steps: Save when at least so many steps were done since the last save; 0: not for that reason.
            every_seconds: Likewise for seconds.
            values: More values for each checkpoint (`config`, `tokenizer_fingerprint`, ...); JSON only.
            network: The model whose parameters are named `model.`; by default what the model's training wraps.
        """
        super().__init__()
        if every_steps < 0 or every_seconds < 0:
            raise ValuesError(f"every_steps {every_steps}, every_seconds {every_seconds}: expected numbers >= 0")
        self.store = store
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._values = values
        self._network = network
        self._saver: AsyncSaver | None = None
        self._parameters: dict[str, mindspore.Parameter] = {}
        self._first_step = 0
        """Steps that earlier runs did; MindSpore counts anew."""
        self._restored: dict[str, Any] = {}
        self._is_restored = False
        self._saved_step = -1
        self._saved_at = time.monotonic()

    def restore(
        self, model: Model, dataset: Any = None, step: int | None = None, *, rules: LoadRules | None = None
    ) -> int:
        """Puts the newest valid checkpoint (or a given step) back; returns `initial_epoch` for `Model.train`.

        Sets the parameters of model and optimizer, the random states, and the position of `dataset`, which must be
        built with the same seed and not be in use yet. Without any checkpoint it changes nothing and returns 0.

        Raises:
            MismatchError: the checkpoint does not fit model, optimizer or dataset; nothing was changed.
            InvalidCheckpointError: the step, or every checkpoint, is damaged.
        """
        parameters = name_parameters(model.train_network, self._network)
        expected_steps = None if dataset is None else dataset.get_dataset_size()
        self._is_restored = True
        newest = self.store.newest_valid() if step is None else step
        if newest is None and not self.store.has_checkpoints():
            return 0
        if newest is not None:
            with self.store.open(newest) as folder:
                _check_data(folder.values, expected_steps, str(folder.path))
        loaded = load_into_parameters(self.store, parameters, newest, rules=rules)
        if loaded is None:
            return 0
        self._first_step = self._saved_step = loaded.step
        self._restored = loaded.values
        if dataset is not None:
            dataset.set_init_step(loaded.step)
        restore_random_state(loaded.values.get("random_state", {}))
        _log.info("restored step %d from %s", loaded.step, loaded.path)
        return int(loaded.values["epoch"])

    def on_train_begin(self, run_context: Any) -> None:
        """Names the parameters, and puts back what only exists once training begins.

        Raises CkptError if the store holds checkpoints of an earlier run and `restore` was not called.
        """
        if not self._is_restored and self.store.has_checkpoints():
            raise CkptError(
                f"{self.store.root}: holds checkpoints of an earlier run; call restore(model, dataset) before "
                "Model.train to go on from them, or save elsewhere"
            )
        self._is_restored = True
        if self._saver is not None:  # of a training that an error ended
            self._saver.close()
        context = run_context.original_args()
        self._parameters = name_parameters(context.train_network, self._network)
        manager = context.get("loss_scale_mananger")  # so it is spelled there
        for key, value in (self._restored.get("loss_scale_manager") or {}).items():
            if manager is not None and hasattr(manager, key):
                setattr(manager, key, value)
        self._saver = AsyncSaver(self.store)
        self._saver.prepare(live_views(self._parameters))
        self._saved_at = time.monotonic()

    def on_train_step_end(self, run_context: Any) -> None:
        """Saves when it is time."""
        context = run_context.original_args()
        step = self._first_step + context.cur_step_num
        is_due = self._every_steps and step - max(self._saved_step, 0) >= self._every_steps
        is_late = self._every_seconds and time.monotonic() - self._saved_at >= self._every_seconds
        if is_due or is_late:
            self._save(step, context)

    def on_train_end(self, run_context: Any) -> None:
        """Saves the last step, and waits until it is on disk; raises what a save raised."""
        context = run_context.original_args()
        step = self._first_step + context.cur_step_num
        if step != self._saved_step:
            self._save(step, context)
        if self._saver is not None:
            self._saver.close()
            self._saver = None
        self._first_step, self._restored = step, {}

    def wait(self) -> Path | None:
        """Returns when the last save is on disk; raises what it raised."""
        return self._saver.wait() if self._saver is not None else None

    def _save(self, step: int, context: Any) -> None:
        if self._saver is None:
            raise CkptError("the callback was not told that training began")
        steps_per_epoch = int(context.batch_num)
        manager = context.get("loss_scale_mananger")
        counters = {key: getattr(manager, key) for key in _SCALE_COUNTERS if hasattr(manager, key)}
        scale = next((v for k, v in self._parameters.items() if k.endswith("scale_sense")), None)
        values = {
            "epoch": step // steps_per_epoch,
            "steps_per_epoch": steps_per_epoch,
            "samples_consumed": step * _batch_size(context),
            "loss_scale": float(scale.asnumpy().reshape(-1)[0])
            if scale is not None
            else counters.get("loss_scale", 1.0),
            "loss_scale_manager": counters or None,
            "random_state": random_state(),
            "tokenizer_fingerprint": None,
            "config": None,
        }
        if self._values is not None:
            values |= self._values()
        self._saver.save(step, live_views(self._parameters), values, replace=True)
        self._saved_step, self._saved_at = step, time.monotonic()


def name_parameters(train_network: nn.Cell, network: nn.Cell | None = None) -> dict[str, mindspore.Parameter]:
    """All parameters of a training cell under names that wrappers do not change, found by identity.

    `model.X` for those of the network, `optimizer.SLOT.X` and `optimizer.SCALAR` for the optimizer's (with its cell's
    name in between if there are several optimizers), `training.X` for what else the cell holds (loss scale, ...).

    Raises MismatchError if two parameters would get one name.
    """
    named: dict[str, mindspore.Parameter] = {}
    names: dict[int, str] = {}

    def add(name: str, parameter: mindspore.Parameter) -> None:
        if id(parameter) in names:
            return
        if name in named:
            raise MismatchError(f"{name}: two parameters would get this name; give the callback the `network` itself")
        named[name], names[id(parameter)] = parameter, name

    for name, parameter in (network if network is not None else _unwrapped(train_network)).parameters_and_names():
        add(f"model.{name}", parameter)
    cells = [(name, cell) for name, cell in train_network.cells_and_names() if isinstance(cell, nn.Optimizer)]
    for cell_name, optimizer in cells:
        prefix = "optimizer." if len(cells) == 1 else f"optimizer.{cell_name}."
        weights = list(optimizer.parameters)
        for weight in weights:
            add(f"training.{weight.name}", weight)
        for slot, states in vars(optimizer).items():
            if isinstance(states, mindspore.ParameterTuple) and len(states) == len(weights):
                for weight, state in zip(weights, states, strict=True):
                    add(f"{prefix}{slot}.{names[id(weight)].partition('.')[2]}", state)
        for name, parameter in optimizer.parameters_and_names(expand=False):
            add(f"{prefix}{name}", parameter)
    for name, parameter in train_network.parameters_and_names():
        add(f"training.{name}", parameter)
    return named


def random_state() -> dict[str, Any]:
    """The random states of Python, numpy and MindSpore as JSON values; MindSpore's dropout has none that it gives."""
    legacy = np.random.get_state(legacy=False)
    version, internal, gauss = random.getstate()
    return {
        "seed": mindspore.get_seed(),
        "dataset_seed": mindspore.dataset.config.get_seed(),
        "python": [version, list(internal), gauss],
        "numpy": {
            "key": legacy["state"]["key"].tolist(),
            "pos": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "mindspore": mindspore.get_rng_state().asnumpy().tolist(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Sets what `random_state` returned; what is missing stays as it is."""
    if state.get("seed") is not None:
        mindspore.set_seed(state["seed"])  # first: it seeds numpy and Python as well
    if state.get("dataset_seed") is not None:
        mindspore.dataset.config.set_seed(state["dataset_seed"])
    if state.get("python") is not None:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
    if state.get("numpy") is not None:
        saved = state["numpy"]
        key = np.array(saved["key"], np.uint32)
        np.random.set_state(("MT19937", key, saved["pos"], saved["has_gauss"], saved["gauss"]))
    if state.get("mindspore") is not None:
        mindspore.set_rng_state(mindspore.Tensor(np.array(state["mindspore"], np.uint8)))


def _unwrapped(train_network: nn.Cell) -> nn.Cell:
    """The network inside MindSpore's own training cells."""
    while True:
        if isinstance(train_network, nn.WithLossCell):
            train_network = train_network.backbone_network
        elif isinstance(train_network, nn.TrainOneStepCell):
            train_network = train_network.network
        else:
            return train_network


def _check_data(values: Mapping[str, Any], steps_per_epoch: int | None, source: str) -> None:
    if type(values.get("epoch")) is not int:
        raise MismatchError(f"{source}: its values hold no epoch; CheckpointCallback did not save it")
    saved = values.get("steps_per_epoch")
    if steps_per_epoch is not None and saved != steps_per_epoch:
        raise MismatchError(
            f"{source}: was saved with {saved} steps an epoch, the dataset has {steps_per_epoch}: another dataset or "
            "batch size would go on at another place in the data"
        )


def _batch_size(context: Any) -> int:
    return int(context.train_dataset.get_batch_size())
