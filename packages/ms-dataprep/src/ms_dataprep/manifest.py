"""The manifest `dataset.json`: what a dataset folder holds, written last, believed only when it says so itself."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ms_dataprep.batches import SpecialIds
from ms_dataprep.errors import DatasetError
from ms_dataprep.mindrecord import INDEX_ENDING

FILE = "dataset.json"
FORMAT = "ms-dataprep.dataset"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard file."""

    file: str
    """Its plain name."""
    rows: int
    """Rows in it."""
    bytes: int
    """Size of the file."""
    sha256: str
    """`sha256:...` of the file."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`dataset.json` as an object; the contract `dataset` explains every field."""

    created_by: str
    """Writer and version."""
    mindspore_version: str
    """MindSpore whose format the shards have."""
    seq_length: int
    """Tokens a training step sees of a row."""
    row_length: int
    """Ids of a row: one more."""
    layout: str
    """`int32` or `bytes`."""
    column: str
    """`input_ids`."""
    rows: int
    """Rows in all shards."""
    tokens: int
    """Ids of documents, each once."""
    documents: int
    """Documents written."""
    vocab_size: int
    """Ids lie below it."""
    special_ids: SpecialIds
    """Document end, padding, document begin."""
    tokenizer: dict[str, str]
    """file, kind, fingerprint."""
    packing: dict[str, Any]
    """method and its counts."""
    options: dict[str, Any]
    """How the writer was called."""
    sources: list[dict[str, Any]]
    """path, bytes, sha256, documents of each input file."""
    dropped: dict[str, int]
    """Documents not written, by reason."""
    shards: list[Shard]
    """The shard files in order."""

    @property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint."""
        return self.tokenizer["fingerprint"]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Publishes `dataset.json` by temporary name, fsync and rename."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_file(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Publishes a file, text as UTF-8, by temporary name, fsync and rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_manifest(folder: str | Path) -> Manifest:
    """Reads and checks `dataset.json`, and that the files it names are there with their sizes.

    Raises:
        DatasetError: the folder is missing or unfinished, the manifest is of another format or version or
            contradicts itself, or a file is missing, renamed or cut off.
    """
    folder = Path(folder)
    manifest = _parse(folder, _read_json(folder))
    for shard in manifest.shards:
        _check_shard(folder, shard)
    return manifest


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such dataset folder")
    try:
        content: Any = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise DatasetError(f"{folder}: no {FILE}, so not a dataset or an unfinished one; build it again") from error
    except ValueError as error:
        raise DatasetError(f"{path}: damaged, not JSON: {error}") from error
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected a JSON object")
    found = (content.get("format"), content.get("version"))
    if found != (FORMAT, VERSION):
        raise DatasetError(
            f"{path}: format {found[0]!r} version {found[1]!r}, expected {FORMAT!r} version {VERSION}; use the "
            "ms-dataprep that wrote it, or build the dataset again"
        )
    return content


def _parse(folder: Path, content: dict[str, Any]) -> Manifest:
    path = folder / FILE
    values = {key: value for key, value in content.items() if key not in ("format", "version")}
    names = {field.name for field in fields(Manifest)}
    if wrong := sorted(names ^ values.keys()):
        raise DatasetError(f"{path}: missing or unknown keys: {', '.join(wrong)}")
    try:
        values["special_ids"] = SpecialIds(**values["special_ids"])
        values["shards"] = [Shard(**shard) for shard in values["shards"]]
        manifest = Manifest(**values)
        rows = sum(shard.rows for shard in manifest.shards)
        ids = manifest.tokens + manifest.packing["repeated_tokens"] + manifest.packing["padding_tokens"]
        fingerprint = manifest.fingerprint
    except (TypeError, KeyError) as error:
        raise DatasetError(f"{path}: does not follow the contract: {error}") from error
    faults = [
        (manifest.row_length != manifest.seq_length + 1, "row_length is not seq_length + 1"),
        (manifest.rows != rows, f"rows is {manifest.rows}, the shards have {rows}"),
        (manifest.rows < 1, "it has no rows"),
        (manifest.rows * manifest.row_length != ids, "tokens, repeated and padding tokens do not fill the rows"),
        (manifest.layout not in ("int32", "bytes"), f"layout {manifest.layout!r} is unknown"),
        (not isinstance(fingerprint, str), "the tokenizer has no fingerprint"),
        (any(Path(shard.file).name != shard.file for shard in manifest.shards), "a shard is not a plain file name"),
    ]
    if found := [fault for is_wrong, fault in faults if is_wrong]:
        raise DatasetError(f"{path}: contradicts itself: {'; '.join(found)}")
    return manifest


def _check_shard(folder: Path, shard: Shard) -> None:
    path = folder / shard.file
    if not path.is_file():
        others = sorted(file.name for file in folder.glob("*.mindrecord"))
        raise DatasetError(
            f"{path} is missing (the folder has {', '.join(others) or 'no shard'}); a renamed shard needs its own name "
            "back, a lost one a new build"
        )
    if (size := path.stat().st_size) != shard.bytes:
        raise DatasetError(f"{path}: {size} bytes, expected {shard.bytes}; copy it again or build the dataset again")
    index = path.with_name(path.name + INDEX_ENDING)
    if not index.is_file():
        raise DatasetError(f"{index} is missing; copy it from where the dataset was built, or build it again")
