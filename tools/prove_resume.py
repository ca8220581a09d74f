"""Proves that a config resumes exactly: kills real processes by SIGKILL, after steps and inside saves, and compares."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import prepare_data
import yaml
from ms_ckpt import CheckpointStore
from ms_parallel import current_rank, launch
from run_config import RunConfig, RunConfigError, load_run_config
from tool_command import ToolCommand, config_options

UNTIMED = ("tokens_per_second", "data_wait", "seconds", "mfu")
"""Keys of the metrics that are no function of the run."""
FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree")
"""Audit events of Python between which a save can be killed."""


@dataclass(frozen=True)
class Kill:
    """Where a process is ended: after a step, or in the save of a step before its n-th file operation."""

    step: int
    operation: int = 0

    def __str__(self) -> str:
        inside = f"in the save of step {self.step}, before file operation {self.operation}"
        return inside if self.operation else f"after step {self.step}"


class KilledStore:
    """The run's checkpoint store, whose save of one step ends the process; it writes down each save's operations."""

    def __init__(self, store: CheckpointStore, kill: Kill | None, log: Path) -> None:
        self._store, self._kill, self._log = store, kill, log
        self._count = self._limit = 0
        self._thread = 0  # that saves, while it does
        sys.addaudithook(self._watch)

    def load(self, step: int | None = None) -> Any:
        """The newest valid checkpoint, or that of a step."""
        return self._store.load(step)

    def save(self, step: int, tensors: dict[str, Any], values: dict[str, Any], *, replace: bool = False) -> None:
        """Saves, or is killed while it does."""
        is_killed = self._kill is not None and self._kill.operation > 0 and self._kill.step == step
        self._limit = self._kill.operation if self._kill is not None and is_killed else 0
        self._count, self._thread = 0, threading.get_ident()
        self._store.save(step, tensors, values, replace=replace)
        self._thread = 0
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "operations": self._count}) + "\n")

    def _watch(self, event: str, _: Any) -> None:
        if event in FILE_EVENTS and self._thread == threading.get_ident():
            self._count += 1
            if self._count == self._limit:
                os.kill(os.getpid(), signal.SIGKILL)


def parse_kill(text: str) -> Kill:
    """Reads `7` (after step 7), `save:8` (in the middle of that save) or `save:8:3` (before its third operation)."""
    parts = text.split(":")
    if parts[0] == "save" and len(parts) in (2, 3) and all(part.isdigit() for part in parts[1:]):
        return Kill(int(parts[1]), int(parts[2]) if len(parts) == 3 else -1)
    if len(parts) == 1 and text.isdigit() and int(text) > 0:
        return Kill(int(text))
    raise RunConfigError(f"--kill {text}: expected STEP, save:STEP or save:STEP:OPERATION")


def draw_kills(count: int, steps: int, save_every: int, seed: int) -> list[Kill]:
    """Random points, every second one inside a save, in the order of their steps."""
    rng = random.Random(seed)
    saves = range(save_every, steps, save_every)
    kills = [
        Kill(rng.choice(saves), -1) if number % 2 and len(saves) else Kill(rng.randint(1, steps - 1))
        for number in range(count)
    ]
    return sorted(kills, key=lambda kill: (kill.step, kill.operation != 0))


def compare(first: Path, second: Path) -> tuple[list[str], str]:
    """Returns what differs between two runs' folders, earliest first (empty: nothing), and what was compared."""
    differences: list[tuple[int, str]] = []
    one, two = _metrics(first), _metrics(second)
    for key in sorted(one.keys() | two.keys(), key=lambda key: (key[0], key[1])):
        if one.get(key) != two.get(key):
            a, b = one.get(key), two.get(key)
            what = "one of the runs has no such line"
            if a is not None and b is not None:
                what = ", ".join(f"{k} {a.get(k)!r} and {b.get(k)!r}" for k in a if a.get(k) != b.get(k))
            differences.append((key[0], f"step {key[0]}, {key[1]} line of the metrics: {what}"))
    stores = [CheckpointStore(folder / "checkpoints") for folder in (first, second)]
    steps = sorted(set(stores[0].steps()) & set(stores[1].steps()))
    num_tensors = 0
    for step in steps:
        a, b = (store.load(step) for store in stores)
        num_tensors += len(a.tensors)
        differences += [(step, text) for text in _compare_checkpoints(step, a, b)]
    compared = f"{len(one)} lines of metrics, {num_tensors} tensors and all values of checkpoints {steps}"
    if not steps:
        differences.append((0, "the runs have no checkpoint in common"))
    return [text for _, text in sorted(differences, key=lambda each: each[0])], compared


def _compare_checkpoints(step: int, a: Any, b: Any) -> list[str]:
    found = []
    for name in sorted(a.tensors.keys() | b.tensors.keys()):
        x, y = (np.asarray(getattr(c.tensors.get(name), "words", c.tensors.get(name))) for c in (a, b))
        if x.dtype != y.dtype or x.shape != y.shape:
            found.append(f"step {step}, tensor {name}: {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}")
        elif x.tobytes() != y.tobytes():
            count = int((x != y).sum())
            gap = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
            found.append(f"step {step}, tensor {name}: {count} of {x.size} elements differ, by up to {gap:.3g}")
    for name in sorted((a.values.keys() | b.values.keys()) - {"config"}):
        if a.values.get(name) != b.values.get(name):
            found.append(f"step {step}, value {name}: {a.values.get(name)!r} and {b.values.get(name)!r}")
    return found


def _metrics(folder: Path) -> dict[tuple[int, str, int], dict[str, Any]]:
    lines = [json.loads(row) for row in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    keyed: dict[tuple[int, str, int], dict[str, Any]] = {}
    for line in lines:
        kind = "sample " + line["prompt"] if line["kind"] == "sample" else line["kind"]
        repeat = sum(key[:2] == (line["step"], kind) for key in keyed)  # a line that stands there twice is a fault
        keyed[line["step"], kind, repeat] = {key: value for key, value in line.items() if key not in UNTIMED}
    return keyed


def _work(config: RunConfig, steps: int, kill: Kill | None) -> None:
    """One process of the proof."""
    from ms_parallel.mindspore import AllReduceSum, init
    from training_run import TrainingRun

    rank = current_rank()
    if rank.world_size > 1:
        rank = init()
    store = CheckpointStore(config.run.checkpoints_path, config.read("checkpoint"))
    watched = KilledStore(store, kill if rank.rank == 0 else None, config.run.path / "saves.jsonl")
    kill_after = kill.step if kill is not None and not kill.operation else None
    training = TrainingRun(config, rank, all_reduce=AllReduceSum() if rank.world_size > 1 else None)
    training.train(kill_after=kill_after if rank.rank == 0 else None, stop_after=steps, store=watched)


def _launch(config: RunConfig, workers: int) -> int:
    """Starts this process again as several workers, and returns their exit code."""
    return launch([sys.executable, *sys.argv], num_workers=workers, log_dir=config.run.path / "workers")


def _run(config_path: Path, steps: int, kill: Kill | None, workers: int) -> None:
    command = [sys.executable, __file__, "--config", str(config_path), "--steps", str(steps), "--worker"]
    command += ["--workers", str(workers)]
    if kill is not None:
        command += ["--kill", f"save:{kill.step}:{kill.operation}" if kill.operation else str(kill.step)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    expected = 0 if kill is None else -signal.SIGKILL if workers == 1 else 128 + signal.SIGKILL
    if done.returncode != expected:
        last = " ".join(done.stderr.splitlines()[-5:])
        raise RunConfigError(f"a process of the proof ended with {done.returncode}, expected {expected}: {last}")


def _write_config(config: RunConfig, folder: Path, save_every: int) -> Path:
    """The user's config with a folder of its own, the same data, and every step logged and every save kept."""
    run, sections = config.run, {name: dict(section) for name, section in config.sections.items()}
    sections["run"] |= {
        "folder": str(folder), "train_dataset": str(run.train_path), "validation_dataset": str(run.validation_path),
        "tokenizer": str(run.tokenizer_path), "text": None,
    }  # fmt: skip
    sections["train"] |= {"log_every": 1, "save_every": save_every, "tensorboard": False}
    sections["checkpoint"] = {"keep_last": 0}
    path = folder / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(json.loads(json.dumps(sections)), sort_keys=False), encoding="utf-8")
    return path


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option(
    "--steps", default=12, show_default=True, help="Steps of the proof; the schedule stays that of the config."
)
@click.option("--save-every", default=3, show_default=True, help="Steps between two saves in the proof.")
@click.option("--kill", "kill_texts", multiple=True, metavar="POINT", help="STEP, save:STEP or save:STEP:OPERATION.")
@click.option("--random", "num_random", default=0, help="So many random points, every second one inside a save.")
@click.option("--seed", default=0, show_default=True, help="Of the random points.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where both runs go; default: prove_resume in the run's."
)
@click.option("--workers", default=1, show_default=True, help="Processes of each run, data-parallel; one is killed.")
@click.option("--worker", is_flag=True, hidden=True)
def main(
    config_path: Path, changes: tuple[str, ...], steps: int, save_every: int, kill_texts: tuple[str, ...],
    num_random: int, seed: int, folder: Path | None, workers: int, worker: bool,
) -> None:  # fmt: skip
    config = load_run_config(config_path, changes)
    kills = sorted(map(parse_kill, kill_texts), key=lambda kill: (kill.step, kill.operation != 0))
    if worker:
        if workers > 1 and current_rank().world_size == 1:
            sys.exit(_launch(config, workers))
        return _work(config, steps, kills[0] if kills else None)
    if not 2 <= steps <= config["train"]["steps"]:
        raise RunConfigError(f"--steps {steps}: expected 2 ... {config['train']['steps']} (train.steps)")
    kills = kills or draw_kills(num_random or 3, steps, save_every, seed)
    for kill in kills:
        if kill.step >= steps or (kill.operation and kill.step % save_every):
            raise RunConfigError(
                f"--kill {kill}: expected a step below {steps}, and for saves one of each {save_every}"
            )
    prepare_data.check_prepared(config, is_text_compared=False)
    if config.run.text is not None and not (config.run.train_path / "dataset.json").exists():
        prepare_data.prepare(config)
    folder = folder or config.run.path / "prove_resume"
    if folder.exists() and any(folder.iterdir()) and not (folder / "whole" / "config.yaml").is_file():
        raise RunConfigError(f"{folder}: holds something else; name an empty folder")
    shutil.rmtree(folder, ignore_errors=True)
    whole, killed = folder / "whole", folder / "killed"
    click.echo(f"run 1 of {len(kills) + 2}: {steps} steps without a stop")
    _run(_write_config(config, whole, save_every), steps, None, workers)
    saves = [json.loads(line) for line in (whole / "saves.jsonl").read_text(encoding="utf-8").splitlines()]
    operations, rng = min(save["operations"] for save in saves), random.Random(seed)
    path = _write_config(config, killed, save_every)
    for number, kill in enumerate(kills, 2):
        if kill.operation < 0:
            middle = operations // 2 + 1 if kill_texts else rng.randint(2, operations)
            kill = Kill(kill.step, middle)
        click.echo(f"run {number} of {len(kills) + 2}: killed {kill}")
        _run(path, steps, kill, workers)
    click.echo(f"run {len(kills) + 2} of {len(kills) + 2}: to the end")
    _run(path, steps, None, workers)
    differences, compared = compare(whole, killed)
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise RunConfigError(f"not exact; the first difference: {differences[0]}{more}; both runs are in {folder}")
    click.echo(f"bit-exact after {len(kills)} kills: {compared}")
    return None


if __name__ == "__main__":
    main()
