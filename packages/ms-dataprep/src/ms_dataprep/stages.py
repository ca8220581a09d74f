"""What is done of a build: each finished task's result beside the build, so that an interrupted one goes on there."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ms_dataprep.errors import UnfinishedError
from ms_dataprep.manifest import write_file

R = TypeVar("R")
_FOLDER, _OPTIONS = ".work", "options.json"


class BuildState:
    """The folder `.work` of a build: its options, and the results of its tasks by stage and number."""

    def __init__(self, building: Path, options: Mapping[str, Any], *, is_resumed: bool) -> None:
        """Begins anew, or goes on where `is_resumed` and something is there.

        Raises:
            UnfinishedError: what is there was begun with other options, inputs or tokenizer; names them.
        """
        self.folder = building / _FOLDER
        path = self.folder / _OPTIONS
        if is_resumed and path.exists():
            begun = json.loads(path.read_text("utf-8"))
            plain = json.loads(json.dumps(options))
            if changed := sorted(key for key in begun.keys() | plain.keys() if begun.get(key) != plain.get(key)):
                found = "; ".join(
                    f"{key}: {plain.get(key)!r:.200}, begun with {begun.get(key)!r:.200}" for key in changed
                )
                raise UnfinishedError(
                    f"{building}: cannot resume with other options: {found}; begin anew without --resume"
                )
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            write_file(path, json.dumps(options, ensure_ascii=False) + "\n")

    def has(self, stage: str, number: int) -> bool:
        """Whether a task is done."""
        return self._path(stage, number).exists()

    def keep(self, stage: str, number: int, result: Any) -> None:
        """Marks a task as done, with its result (a dataclass of plain values)."""
        write_file(self._path(stage, number), json.dumps(asdict(result), ensure_ascii=False) + "\n")

    def result(self, stage: str, number: int, make: Callable[..., R]) -> R:
        """The result of a task that is done."""
        return make(**json.loads(self._path(stage, number).read_text("utf-8")))

    def spool(self, number: int) -> Path:
        """The folder of a task's spool."""
        return self.folder / f"spool-{number:05d}"

    def remove(self) -> None:
        """Removes all of it: the build is complete."""
        shutil.rmtree(self.folder)

    def _path(self, stage: str, number: int) -> Path:
        return self.folder / f"{stage}-{number:05d}.json"
