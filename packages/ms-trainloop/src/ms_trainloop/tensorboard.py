"""TensorBoard event files with the numbers of `metrics.jsonl`: tags `<kind>/<key>`, the step as global step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_trainloop.errors import MissingExtraError

_NOT_SCALARS = ("kind", "step")


class EventFiles:
    """Writes scalars into `run_dir/tensorboard`; a resumed run hides what an earlier one wrote beyond its step."""

    def __init__(self, run_dir: Path, *, step: int) -> None:
        """Opens an event file for a run that has done `step` steps."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                'train.tensorboard is true, but tensorboardX is not installed: pip install "ms-trainloop[tensorboard]"'
            ) from error
        self._make = SummaryWriter
        self._folder = str(run_dir / "tensorboard")
        self._writer = SummaryWriter(self._folder, purge_step=step + 1 if step else None)

    def rewind(self, step: int) -> None:
        """Hides what was written beyond `step`."""
        self._writer.close()
        self._writer = self._make(self._folder, purge_step=step + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """Writes every number of a line; null has no point in a curve."""
        for key, value in line.items():
            if key not in _NOT_SCALARS and isinstance(value, int | float):
                self._writer.add_scalar(f"{line['kind']}/{key}", value, line["step"])

    def close(self) -> None:
        """Flushes and closes."""
        self._writer.close()
