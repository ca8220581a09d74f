"""Input files: which ones paths, folders and globs name, and their bytes, counted and hashed as they pass."""

import glob
import gzip
import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ms_dataprep.errors import SourceError

logger = logging.getLogger(__name__)

KINDS = (".txt", ".jsonl")
READABLE = tuple(kind + packed for kind in KINDS for packed in ("", ".gz"))


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file."""

    path: str
    """As it was given or found."""
    kind: str
    """`.txt` or `.jsonl`."""
    is_gzip: bool
    """Whether its bytes are gzip."""
    bytes: int
    """Size of the file as it lies on disk."""


def find_sources(inputs: Sequence[str | Path]) -> list[Source]:
    """The files that paths, folders (recursive) and globs name, each once, folders and globs in sorted order.

    Raises:
        SourceError: a path is missing, a glob matches nothing, a folder holds nothing readable, or a file that was
            named outright has an unknown ending.
    """
    if not inputs:
        raise SourceError("no input given; name files, folders or globs")
    found: dict[Path, Source] = {}
    for item in inputs:
        for path in _expand(str(item)):
            found.setdefault(path.resolve(), _describe(path))
    return list(found.values())


def _expand(item: str) -> list[Path]:
    path = Path(item)
    if path.is_dir():
        return _readable_files(path)
    if path.exists():
        if not path.name.lower().endswith(READABLE):
            raise SourceError(f"{item}: unknown kind of file; readable are {', '.join(READABLE)}")
        return [path]
    if not glob.has_magic(item):
        raise SourceError(f"{item}: no such file or folder")
    matches = [Path(match) for match in sorted(glob.glob(item, recursive=True))]  # noqa: PTH207 - absolute ones too
    files = [match for match in matches if match.is_file() and match.name.lower().endswith(READABLE)]
    files += [file for match in matches if match.is_dir() for file in _readable_files(match, may_be_empty=True)]
    if not files:
        raise SourceError(f"{item}: the glob matches no readable file ({', '.join(READABLE)}); {len(matches)} matches")
    return files


def _readable_files(folder: Path, *, may_be_empty: bool = False) -> list[Path]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    readable = [file for file in visible if file.name.lower().endswith(READABLE)]
    if not readable and not may_be_empty:
        raise SourceError(f"{folder}: no readable file among {len(visible)}; readable are {', '.join(READABLE)}")
    if len(readable) < len(visible):
        logger.info("%s: %d files of other kinds are left aside", folder, len(visible) - len(readable))
    return readable


def _describe(path: Path) -> Source:
    name = path.name.lower()
    is_gzip = name.endswith(".gz")
    kind = Path(name.removesuffix(".gz")).suffix
    return Source(path=str(path), kind=kind, is_gzip=is_gzip, bytes=path.stat().st_size)


class SourceFile:
    """An open source: `stream` gives its unpacked bytes; `bytes_read` and `sha256` are about the file on disk."""

    def __init__(self, source: Source) -> None:
        self._raw = _HashingFile(source.path)
        packed = io.BufferedReader(self._raw, 1 << 20)
        self._packed = packed
        self.stream: io.BufferedIOBase = gzip.GzipFile(fileobj=packed) if source.is_gzip else packed

    @property
    def bytes_read(self) -> int:
        """Bytes taken from disk so far."""
        return self._raw.bytes_read

    def sha256(self) -> str:
        """`sha256:` and the hash of the whole file; reads what a reader left over, such as a damaged file's rest."""
        while self._packed.read(1 << 20):
            pass
        return "sha256:" + self._raw.digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stream.close()
        self._packed.close()


class _HashingFile(io.RawIOBase):
    """A file that hashes what is read from it, so that no input is read twice."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by close()
        self.digest = hashlib.sha256()
        self.bytes_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # Buffer in typeshed, memoryview in fact
        count = self._file.readinto(buffer) or 0
        self.digest.update(buffer[:count])
        self.bytes_read += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
