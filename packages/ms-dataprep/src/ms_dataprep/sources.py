"""Input files: which ones paths, folders and globs name, and their bytes, whole or a range of them, unpacked."""

import glob
import gzip
import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_dataprep.errors import DataprepError, SourceError

logger = logging.getLogger(__name__)

KINDS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
PACKINGS = (".gz", ".zst")
_BINARY_KINDS = (".parquet", ".arrow")
READABLE = tuple(
    kind + packed for kind in KINDS for packed in ("", *PACKINGS) if not (packed and kind in _BINARY_KINDS)
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file."""

    path: str
    """As it was given or found."""
    kind: str
    """One of KINDS."""
    packing: str
    """`.gz`, `.zst`, or empty."""
    bytes: int
    """Size of the file as it lies on disk."""

    @property
    def is_divisible(self) -> bool:
        """Whether ranges of its bytes can be read apart: lines of a file that is not packed."""
        return self.kind == ".jsonl" and not self.packing


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


def hash_source(source: Source) -> str:
    """`sha256:...` of the whole file as it lies on disk."""
    with Path(source.path).open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


class CountingFile(io.RawIOBase):
    """A file that counts the bytes taken from disk, for progress."""

    def __init__(self, path: str, begin: int = 0) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed by close()
        self._file.seek(begin)
        self.bytes_read = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        count = self._file.readinto(buffer) or 0
        self.bytes_read += count
        return count

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self._file.close()
        super().close()


@contextmanager
def open_stream(source: Source, begin: int = 0) -> Iterator[tuple[io.BufferedIOBase, CountingFile]]:
    """The unpacked bytes of a source from byte `begin` on (0 for a packed one), and the file that counts them.

    Raises:
        DataprepError: `.zst` without the package that reads it.
    """
    raw = CountingFile(source.path, begin)
    packed = io.BufferedReader(raw, 1 << 20)
    try:
        yield _unpack(packed, source), raw
    finally:
        packed.close()


def _unpack(packed: Any, source: Source) -> io.BufferedIOBase:
    if source.packing == ".gz":
        return gzip.GzipFile(fileobj=packed)
    if source.packing == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise DataprepError(f'{source.path}: .zst needs zstandard; pip install "ms-dataprep[zstd]"') from error
        return io.BufferedReader(_ZstdFile(packed, zstandard.ZstdDecompressor().decompressobj), 1 << 20)
    unpacked: io.BufferedIOBase = packed
    return unpacked


class _ZstdFile(io.RawIOBase):
    """The unpacked bytes of zstd frames. The package's own reader takes a file that was cut off for a whole one."""

    _PACKED_AT_ONCE = 1 << 13  # a crafted file makes 256 MB of it at most

    def __init__(self, packed: Any, make_frame: Callable[[], Any]) -> None:
        self._packed = packed
        self._make_frame = make_frame
        self._frame: Any = None
        self._waiting = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._waiting or self._packed.read(self._PACKED_AT_ONCE)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the zstd stream ends early (file cut off)")
                return 0
            self._frame = self._frame or self._make_frame()
            self._ready = memoryview(self._frame.decompress(packed))
            self._waiting = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


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
    packing = next((ending for ending in PACKINGS if name.endswith(ending)), "")
    kind = Path(name.removesuffix(packing)).suffix
    return Source(path=str(path), kind=kind, packing=packing, bytes=path.stat().st_size)
