"""English that every Python installation has: the language reference and the docstrings of what is installed."""

from __future__ import annotations

import ast
import inspect
import json
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from run_config import RunConfigError
from tqdm import tqdm

PACKAGES = ("numpy", "mindspore", "scipy", "click", "tokenizers", "safetensors", "pip")
"""Installed packages whose docstrings are read, in this order; those that are missing are passed over."""

MINIMUM_CHARACTERS = 200
"""Shorter docstrings teach a model little but the phrase 'Return the'."""


def write_system_text(output: Path, megabytes: float) -> int:
    """Writes documents as JSON lines (`text`, `source`) until `megabytes` of text are there; returns their number.

    The order is fixed by the file names, so the same installation gives the same file.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    wanted, written, documents = int(megabytes * 1e6), 0, 0
    handle, temporary = tempfile.mkstemp(dir=output.parent, prefix=output.name)
    with (
        os.fdopen(handle, "w", encoding="utf-8") as lines,
        tqdm(total=wanted, unit="B", unit_scale=True, desc="collecting text", disable=None) as bar,
    ):
        for source, text in _documents():
            lines.write(json.dumps({"text": text, "source": source}, ensure_ascii=False) + "\n")
            size = len(text.encode("utf-8", "replace"))
            written, documents = written + size, documents + 1
            bar.update(size)
            if written >= wanted:
                break
    if written < min(wanted, 1_000_000):
        Path(temporary).unlink()
        raise RunConfigError(
            f"only {written / 1e6:.1f} MB of text found in this Python; give your own with --input PATH"
        )
    Path(temporary).replace(output)
    return documents


def _documents() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield f"pydoc_data.topics:{name}", topics[name]
    library = Path(sysconfig.get_path("stdlib"))
    yield from _docstrings(
        library, library, skip={"test", "tests", "idlelib", "site-packages", "lib2to3", "pydoc_data"}
    )
    for site in dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")):
        for package in PACKAGES:
            yield from _docstrings(site / package, site, skip={"tests", "test", "_vendor"})


def _docstrings(folder: Path, root: Path, skip: set[str]) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py")):
        if skip & set(path.relative_to(folder).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (
            SyntaxError,
            ValueError,
            OSError,
        ):  # a template, another encoding, an unreadable file: not ours to judge
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
                if len(text) >= MINIMUM_CHARACTERS:
                    yield f"{path.relative_to(root)}:{getattr(node, 'name', 'module')}", text
