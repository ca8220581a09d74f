"""MindSpore's compile cache made safe: one folder for each hash of everything that the compiled step depends on.

MindSpore's own key knows neither the model nor the constants in its graph, so a changed run pointed at an old folder
silently runs the old graph. Here the folder's name is a hash of the configuration, the input shapes, every value that
the cells hold, the sources of all code they can reach, and the versions. A cell that holds what cannot be hashed is
compiled without a cache. A folder is made beside its place, given checksums and renamed; what does not match its
checksums is made again.
"""

import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

_LOG = logging.getLogger(__name__)
_CHECKSUMS = "checksums.json"
_VERSIONED = ("mindspore", "numpy")
"""Packages known by their version; of all others the sources are hashed."""
_CELL = frozenset(vars(nn.Cell())) - {"training", "_name", "_params", "_cells", "cell_init_args"}
"""What every cell holds: MindSpore's bookkeeping."""


class UnknownValueError(Exception):
    """A cell holds something whose meaning cannot be hashed."""


@contextmanager
def cached_compilation(folder: Path, cell: nn.Cell, *key: Any) -> Iterator[bool]:
    """Compiles inside the block through the cache in `folder`; yields whether a stored graph is used.

    Args:
        folder: Holds one folder for each hash; shared by any runs.
        cell: What is compiled inside the block.
        key: What else the graph depends on: plain values, such as the configuration and the input shapes.
    """
    try:
        place = folder / hash_of(cell, *key)
    except UnknownValueError as error:
        _LOG.warning("compiled without the cache (train.compile_cache): %s cannot be hashed", error)
        yield False
        return
    is_stored = _is_sound(place)
    if is_stored:
        with _enabled(place):
            yield True
        return
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=folder))
    try:
        with _enabled(staged):
            yield False
        (staged / _CHECKSUMS).write_text(json.dumps(_checksums(staged)), encoding="utf-8")
        try:
            staged.rename(place)
        except OSError:  # another process has stored the same graph meanwhile
            _LOG.info("%s: stored by another process", place)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def hash_of(cell: nn.Cell, *key: Any) -> str:
    """Returns the hash, 32 hexadecimal digits, of all that a graph of `cell` depends on.

    Raises:
        UnknownValueError: A cell holds an object that is no plain value, tensor, cell, primitive or function.
    """
    walk = _Walk()
    walk.add(key)
    walk.add(cell)
    walk.add_sources()
    walk.add([platform.python_version(), mindspore.get_context("device_target"), mindspore.get_context("mode")])
    for package in _VERSIONED:
        try:
            walk.add(version(package))
        except PackageNotFoundError:
            walk.add(None)
    walk.add(sorted(item for item in os.environ.items() if item[0].startswith(("MS_DEV_", "MS_JIT", "MS_ENABLE_"))))
    return walk.digest.hexdigest()[:32]


class _Walk:
    """Feeds a hash with values, and collects the modules whose code they can reach."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no address in `_seen` is given to another object
        self._modules: dict[str, ModuleType] = {}

    def add(self, value: Any, place: str = "") -> None:
        """Adds a value; containers and objects with all that they hold."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | range):
            return self._feed(type(value).__name__, repr(value))
        if id(value) in self._seen:
            return self._feed("again", str(self._seen[id(value)]))
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        if isinstance(value, Tensor):
            return self._add_tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            self._feed("array", f"{value.dtype}{value.shape}")
            return self.digest.update(np.ascontiguousarray(value).tobytes())
        if isinstance(value, tuple | list | set | frozenset):
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return self._add_items(type(value).__name__, enumerate(items), place)
        if isinstance(value, dict):
            return self._add_items("dict", value.items(), place)
        if isinstance(value, Enum | np.dtype | Path) or type(value).__module__.startswith("mindspore._c_expression"):
            if "0x" in repr(value):
                raise UnknownValueError(f"{place} ({type(value).__qualname__})")
            return self._feed(type(value).__qualname__, repr(value))
        return self._add_object(value, place)

    def _add_object(self, value: Any, place: str) -> None:
        if isinstance(value, ModuleType):
            return self._visit(value.__name__)
        if isinstance(value, type | BuiltinFunctionType):
            self._visit(value.__module__)
            return self._feed("type", f"{value.__module__}.{value.__qualname__}")
        if isinstance(value, MethodType):
            self._feed("method", value.__qualname__)
            return self.add(value.__self__, place)
        if isinstance(value, FunctionType):
            self._visit(value.__module__)
            self._feed("function", f"{value.__module__}.{value.__qualname__}")
            self.add([value.__defaults__, value.__kwdefaults__], place)
            return self.add([cell.cell_contents for cell in value.__closure__ or ()], place)
        kind = type(value)
        self._feed("object", f"{kind.__module__}.{kind.__qualname__}")
        for base in kind.__mro__:
            self._visit(base.__module__)
        if isinstance(value, nn.Cell):
            left_out = _CELL | set(getattr(value, "NOT_COMPILED", ()))
            held = {k: v for k, v in vars(value).items() if k not in left_out}
            return self._add_items("cell", held.items(), place)
        if isinstance(value, ops.Primitive):
            self._feed("primitive", value.name)
            return self._add_items("primitive", sorted(value.attrs.items()), place)
        if is_dataclass(value):
            return self._add_items("dataclass", ((f.name, getattr(value, f.name)) for f in fields(value)), place)
        if hasattr(value, "__dict__") and hasattr(sys.modules.get(kind.__module__), "__file__"):
            return self._add_items("object", vars(value).items(), place)  # its class is known by its source or version
        raise UnknownValueError(f"{place} ({kind.__module__}.{kind.__qualname__})")

    def _add_tensor(self, value: Tensor) -> None:
        if isinstance(value, Parameter):
            return self._feed("parameter", f"{value.name} {value.dtype} {value.shape} {value.requires_grad}")
        self._feed("tensor", f"{value.dtype} {value.shape}")
        return self.digest.update(value.get_bytes())

    def _add_items(self, kind: str, items: Any, place: str) -> None:
        for key, value in items:
            self.add(key, place)
            self.add(value, f"{place}.{key}".lstrip("."))
        self._feed("end", kind)

    def _feed(self, kind: str, text: str) -> None:
        self.digest.update(f"{kind}\0{len(text)}\0{text}\0".encode("utf-8", "backslashreplace"))

    def _visit(self, name: str | None) -> None:
        """Collects a module and all that its globals refer to."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            module = sys.modules.get(name or "")
            root = (name or "").partition(".")[0]
            is_known = root in _VERSIONED or (root in sys.stdlib_module_names and root != "__main__")
            if module is None or name in self._modules or is_known:
                continue
            self._modules[module.__name__] = module
            for value in vars(module).values():
                if isinstance(value, ModuleType):
                    waiting.append(value.__name__)
                elif isinstance(value, type | FunctionType):
                    waiting.append(value.__module__)

    def add_sources(self) -> None:
        """Adds the text of every module collected, and its global numbers and texts as they are now."""
        for name, module in sorted(self._modules.items()):
            file = getattr(module, "__file__", None)
            self._feed("module", name)
            if file is not None and Path(file).is_file():
                self.digest.update(Path(file).read_bytes())
            for key, value in sorted(vars(module).items()):
                if not key.startswith("__") and isinstance(value, bool | int | float | str | tuple):
                    self._feed(key, repr(value) if "0x" not in repr(value) else "")


@contextmanager
def _enabled(folder: Path) -> Iterator[None]:
    mindspore.set_context(enable_compile_cache=True, compile_cache_path=str(folder))
    try:
        yield
    finally:
        mindspore.set_context(enable_compile_cache=False)


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _CHECKSUMS)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _is_sound(folder: Path) -> bool:
    """Whether the folder is whole and holds what was stored."""
    try:
        stored = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        return bool(stored) and stored == _checksums(folder)
    except (OSError, ValueError):
        return False
