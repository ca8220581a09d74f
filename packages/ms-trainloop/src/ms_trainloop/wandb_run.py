"""A Weights & Biases run with the numbers of `metrics.jsonl`: keys `<kind>/<key>`, the step as the run's step axis."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from ms_trainloop.errors import MissingExtraError

_NOT_SCALARS = ("kind", "step")
_ID_FILE = "wandb_id.json"


class WandbRun:
    """Logs scalars; a resumed run goes on under the id of the first. Its files stand in `run_dir/wandb`.

    Whether it is sent anywhere is wandb's own matter (WANDB_MODE, an account, a project): `offline` here is a run that
    is only written, for `wandb sync`.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], *, mode: str, project: str) -> None:
        """Starts the run. `mode` is `offline` or `online`; `config` is shown with it.

        Raises:
            MissingExtraError: wandb is not installed.
        """
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                f'train.wandb is {mode}, but wandb is not installed: pip install "ms-trainloop[wandb]"'
            ) from error
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / _ID_FILE
        run_id = json.loads(path.read_text(encoding="utf-8"))["id"] if path.is_file() else uuid4().hex[:8]
        path.write_text(json.dumps({"id": run_id}) + "\n", encoding="utf-8")
        options: dict[str, Any] = {"mode": mode, "resume": "allow" if mode == "online" else None}
        self._run = wandb.init(
            project=project, name=run_dir.resolve().name, id=run_id, dir=str(run_dir), config=dict(config),
            settings=wandb.Settings(silent=True, disable_git=True), **options,
        )  # fmt: skip
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def rewind(self, step: int) -> None:
        """Does nothing: the points beyond the step stay, and later ones of the same step are drawn over them."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Logs every number of a line; null has no point in a curve."""
        numbers = {
            f"{line['kind']}/{key}": value
            for key, value in line.items()
            if key not in _NOT_SCALARS and isinstance(value, int | float)
        }
        if numbers:
            self._run.log({**numbers, "step": line["step"]})

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()
