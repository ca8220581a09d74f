"""Real text and tokenizers for benchmarks, installed by package name into a cache folder and never committed.

English: the reStructuredText of Debian's `linux-doc` (GPL-2). Chinese: the poems of npm's `chinese-poetry` (MIT), about
200 of them a document. Tokenizer: the Qwen vocabulary in PyPI's `dashscope` (Apache-2.0), as a tokenizer.json.
"""

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from run_config import RunConfigError

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_POEMS_A_DOCUMENT = 200


def cache_folder() -> Path:
    """Where what was installed stays: below XDG_CACHE_HOME, by default ~/.cache."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mindspore-pretraining-benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def english_text() -> Path:
    """A .jsonl of about 30 MB, one file of the Linux kernel's documentation a line."""
    return _cached("linux-doc.jsonl", _write_english)


def chinese_text() -> Path:
    """A .jsonl of about 60 MB of Tang and Song poems."""
    return _cached("chinese-poetry.jsonl", _write_chinese)


def qwen_tokenizer() -> Path:
    """A tokenizer.json of 151,643 byte-level BPE tokens and `<|endoftext|>`."""
    return _cached("qwen.tokenizer.json", _write_qwen)


def peer_python(*packages: str) -> Path:
    """The interpreter of an environment of its own with a peer that cannot live beside MindSpore (numpy 2)."""
    folder = cache_folder() / f"peer-{'-'.join(name.partition('=')[0] for name in packages)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", *packages)
        (folder / "complete").touch()
    return python


def _cached(name: str, write: Callable[[Path, Path], None]) -> Path:
    path = cache_folder() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            write(Path(folder), Path(folder) / name)
            (Path(folder) / name).replace(path)
    return path


def _write_english(folder: Path, path: Path) -> None:
    depends = _run("apt-cache", "depends", "linux-doc").split()
    package = next((word for word in depends if word.startswith("linux-doc-")), "linux-doc")
    _run("apt-get", "download", "-qq", package, cwd=folder)
    _run("dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder / "files"))
    files = sorted(file for file in (folder / "files").rglob("*.rst*") if file.is_file() and not file.is_symlink())
    _write_documents(path, (_read(file) for file in files if "_sources" not in file.parts))


def _write_chinese(folder: Path, path: Path) -> None:
    _run("npm", "pack", "--silent", "chinese-poetry@2.0.1", cwd=folder)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    poems = [
        f"{poem.get('title', '')}\n{poem['author']}\n" + "\n".join(poem["paragraphs"])
        for file in sorted(folder.rglob("poet.*.json"))
        for poem in json.loads(file.read_text("utf-8"))
        if "paragraphs" in poem
    ]
    starts = range(0, len(poems), _POEMS_A_DOCUMENT)
    _write_documents(path, ("\n\n".join(poems[start : start + _POEMS_A_DOCUMENT]) for start in starts))


def _write_qwen(folder: Path, path: Path) -> None:
    from tokenizers import AddedToken
    from transformers.convert_slow_tokenizer import TikTokenConverter

    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "dashscope")
    with zipfile.ZipFile(next(folder.glob("dashscope-*.whl"))) as wheel:
        wheel.extract("dashscope/resources/qwen.tiktoken", folder)
    vocabulary = folder / "dashscope" / "resources" / "qwen.tiktoken"
    ranks = (line.split() for line in vocabulary.read_bytes().splitlines())
    ranks_by_bytes = {base64.b64decode(token): int(rank) for token, rank in ranks}
    converter = TikTokenConverter(vocab_file=str(vocabulary), pattern=_QWEN_PATTERN)
    converter.load_tiktoken_bpe = lambda _: ranks_by_bytes  # its own needs the package tiktoken for these two lines
    tokenizer = converter.converted()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    tokenizer.save(str(path))


def _read(file: Path) -> str:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return data.decode("utf-8", "replace")


def _write_documents(path: Path, texts: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts if text.strip())


def _run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise RunConfigError(f"the benchmark's text needs the command {command[0]!r}, which is not installed")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunConfigError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return done.stdout
