"""What a run planned: its section `train`, kept in the run's folder, so that a report can draw the schedule."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ms_trainloop.config import TrainConfig, from_mapping
from ms_trainloop.errors import ConfigError
from ms_trainloop.schedules import learning_rate

FORMAT, VERSION = "ms-trainloop.plan", 1
FILE_NAME = "train_plan.json"
_MOST_POINTS = 2000
_LOG = logging.getLogger(__name__)


def write_plan(run_dir: Path, config: TrainConfig) -> None:
    """Writes `run_dir/train_plan.json`, whole; a resumed run replaces it by what it was resumed with."""
    run_dir.mkdir(parents=True, exist_ok=True)
    temporary = run_dir / f".{FILE_NAME}.tmp"
    content = {"format": FORMAT, "version": VERSION, "train": asdict(config)}
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(run_dir / FILE_NAME)


def read_plan(run_dir: Path) -> TrainConfig | None:
    """Returns the run's section `train`, or None if it has none or one that this version does not read."""
    path = run_dir / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, Mapping) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ConfigError(f"{path}: expected format {FORMAT}, version {VERSION}")
        return from_mapping(TrainConfig, content["train"], "train")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, ConfigError) as error:
        _LOG.warning("%s: the planned schedule is not drawn: %s", path, error)
        return None


def planned_rates(config: TrainConfig) -> list[tuple[float, float | None]]:
    """Returns (step from 1, rate of that step) over the whole run, every step or evenly picked ones, edges included."""
    stride = -(-config.steps // _MOST_POINTS)
    edges = {0, max(config.warmup_steps - 1, 0), config.steps - 1, max(config.steps - 1 - config.decay_steps, 0)}
    steps = sorted({*range(0, config.steps, stride), *edges})
    return [(float(step + 1), learning_rate(config, step)) for step in steps]
