"""The folder of contract `bundle`: its document, and the check that every file of it is the one that was written."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ms_export.config import from_mapping
from ms_export.errors import BundleError, ConfigError
from ms_export.model import DECODE_INPUTS, PREFILL_INPUTS

FORMAT = "ms-export.bundle"
VERSION = 1
DOCUMENT = "bundle.json"
WEIGHTS = "model.safetensors"
PARITY = "parity.npz"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_CHECKSUM = re.compile(rb'("checksum": "sha256:)([0-9a-f]{64})')


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One MindIR file and the call that it answers."""

    kind: str
    """"prefill" or "decode"."""
    file: str
    """Its file in the folder."""
    batch: int
    """Lanes of a call."""
    inputs: tuple  # type: ignore[type-arg]
    """`{"name", "dtype", "shape"}` in the order of the call."""
    outputs: tuple  # type: ignore[type-arg]
    """The same for the results."""
    length: int | None = None
    """Ids per prompt of a prefill graph."""
    window: int | None = None
    """Cache rows that a decode graph sees."""

    def __post_init__(self) -> None:
        """Refuses a call that contract `model` does not know."""
        size, other = (self.length, self.window) if self.kind == "prefill" else (self.window, self.length)
        if self.kind not in ("prefill", "decode") or size is None or other is not None:
            raise ConfigError(
                f"{self.file}: expected prefill with length or decode with window, found kind {self.kind!r}"
            )
        names = PREFILL_INPUTS if self.kind == "prefill" else DECODE_INPUTS
        columns = size if self.kind == "prefill" else 1
        wanted = list(zip(names, ([self.batch, columns], [self.batch], [self.batch]), strict=True))
        if [(i["name"], i["shape"]) for i in self.inputs] != wanted or {i["dtype"] for i in self.inputs} != {"int32"}:
            raise ConfigError(f"{self.file}: expected int32 inputs {wanted}, found {list(self.inputs)}")

    @property
    def size(self) -> int:
        """The length or the window."""
        return self.length or self.window or 0


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The cache that all graphs of a bundle use together."""

    slots: int
    """Lanes, the last one being scratch."""
    max_length: int
    """Positions of a lane."""
    num_layers: int
    """Layers that keep keys and values."""
    num_key_value_heads: int
    """Heads of a layer."""
    head_dim: int
    """Width of a head."""
    dtype: str
    """Kind of number."""
    parameters: tuple  # type: ignore[type-arg]
    """The cache's parameter names in order."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of each parameter."""
        return self.slots * self.num_key_value_heads * self.max_length, self.head_dim

    @property
    def scratch(self) -> int:
        """The slot that inactive lanes write to."""
        return self.slots - 1


@dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """The tokenizer that a bundle carries."""

    file: str
    """Its file in the folder."""
    kind: str
    """"huggingface" or "sentencepiece"."""
    fingerprint: str | None
    """Of contract `dataset`, compared as a string."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """How a bundle generates unless a call says otherwise."""

    eos_token_ids: tuple  # type: ignore[type-arg]
    """Ids that end a text."""
    bos_token_id: int | None
    """Id that goes before a text prompt, if any."""
    pad_token_id: int | None
    """Id that pads; the graphs do not look at padding."""
    max_new_tokens: int
    """New ids per prompt."""
    temperature: float
    """0 is greedy."""
    top_k: int
    """0 means all."""
    top_p: float
    """1 means all."""


@dataclass(frozen=True, kw_only=True)
class Parity:
    """How well the graphs agreed with the source model when the bundle was written."""

    file: str
    """The probes."""
    tolerance: float
    """Largest difference allowed, as a share of the largest logit."""
    max_abs_difference: float
    """Largest difference found at export."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The document `bundle.json`; field by field what contract `bundle` says."""

    mindspore_version: str
    """Version of MindSpore that exported the graphs."""
    created_by: str
    """Program and version that wrote the bundle."""
    precision: str
    """Kind of number of weights and logits."""
    vocab_size: int
    """Ids below it may be sampled."""
    files: dict  # type: ignore[type-arg]
    """Name -> `{"bytes", "sha256"}` of every other file."""
    graphs: tuple  # type: ignore[type-arg]
    """The Graphs."""
    cache: Cache
    """The cache of all graphs."""
    tokenizer: TokenizerFile | None
    """The tokenizer, or None for a bundle that takes ids only."""
    generation: Defaults
    """Defaults of generation."""
    model: dict  # type: ignore[type-arg]
    """The model's config.json, for people."""
    parity: Parity
    """The export's own check."""

    def graphs_of(self, kind: str) -> list[Graph]:
        """The graphs of a kind, smallest first (by size, then batch)."""
        return sorted((g for g in self.graphs if g.kind == kind), key=lambda g: (g.size, g.batch))

    def write(self, folder: Path) -> None:
        """Writes `bundle.json` with its own checksum."""
        document = {"format": FORMAT, "version": VERSION, "checksum": "sha256:" + "0" * 64, **asdict(self)}
        document["graphs"] = [{k: v for k, v in g.items() if v is not None} for g in document["graphs"]]
        data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
        if len(_CHECKSUM.findall(data)) != 1:
            raise BundleError('bundle.json: the text "checksum": "sha256:..." may not stand in the model\'s config')
        digest = hashlib.sha256(data).hexdigest().encode()
        (folder / DOCUMENT).write_bytes(_CHECKSUM.sub(rb"\g<1>" + digest, data))


def read(folder: Path) -> Bundle:
    """Reads a bundle's document.

    Raises:
        BundleError: There is none, it was changed, it is of another format or version, or it contradicts itself.
    """
    path = folder / DOCUMENT
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder; expected a bundle written by `ms-export build`")
    if not path.is_file():
        raise BundleError(f"{path}: missing; the folder is no bundle, or its export did not finish")
    data = path.read_bytes()
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except ValueError as error:  # of json and of the decoder alike
        raise BundleError(f"{path}: not strict JSON: {error}") from error
    found = (document.get("format"), document.get("version")) if isinstance(document, dict) else (None, None)
    if found != (FORMAT, VERSION) or isinstance(found[1], bool):
        raise BundleError(
            f"{path}: found format {found[0]!r} version {found[1]!r}, expected {FORMAT!r} version {VERSION}"
        )
    sums = _CHECKSUM.findall(data)
    zeroed = _CHECKSUM.sub(rb"\g<1>" + b"0" * 64, data)
    if len(sums) != 1 or hashlib.sha256(zeroed).hexdigest().encode() != sums[0][1]:
        raise BundleError(f"{path}: changed since the bundle was written (its checksum does not match); export again")
    try:
        return _from_document(document)
    except KeyError as error:
        raise BundleError(f"{path}: missing {error}") from error
    except (ConfigError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: {error}") from error


def verify(folder: Path, bundle: Bundle) -> None:
    """Compares every file of the folder with the document.

    Raises:
        BundleError: Naming all files that are missing, changed or unexpected.
    """
    present = {entry.name: entry for entry in folder.iterdir() if entry.name != DOCUMENT}
    faults = [f"{name}: missing" for name in bundle.files if name not in present]
    faults += [f"{name}: unexpected, the bundle was written without it" for name in present if name not in bundle.files]
    for name, expected in bundle.files.items():
        if (path := present.get(name)) is None:
            continue
        if path.is_symlink() or not path.is_file():
            faults.append(f"{name}: expected a plain file, found a link or a folder")
        elif path.stat().st_size != expected["bytes"]:
            faults.append(f"{name}: changed, {path.stat().st_size} bytes where {expected['bytes']} were written")
        elif describe(path) != expected:
            faults.append(f"{name}: changed, its sha256 differs from the one written")
    if faults:
        raise BundleError(f"{folder}: " + "; ".join(sorted(faults)) + ". Copy the bundle again, or export it again")


def describe(path: Path) -> dict[str, Any]:
    """The entry of `files` for a file: `{"bytes", "sha256"}`."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": f"sha256:{digest}"}


def _from_document(document: Mapping[str, Any]) -> Bundle:
    values = {key: value for key, value in document.items() if key not in ("format", "version", "checksum")}
    tokenizer = values["tokenizer"]
    values["graphs"] = tuple(from_mapping(Graph, g, f"graphs[{n}]") for n, g in enumerate(values["graphs"]))
    values["cache"] = from_mapping(Cache, values["cache"], "cache")
    values["tokenizer"] = None if tokenizer is None else from_mapping(TokenizerFile, tokenizer, "tokenizer")
    values["generation"] = from_mapping(Defaults, values["generation"], "generation")
    values["parity"] = from_mapping(Parity, values["parity"], "parity")
    bundle = from_mapping(Bundle, values, DOCUMENT)
    used = [WEIGHTS, bundle.parity.file, *(g.file for g in bundle.graphs)]
    used += [bundle.tokenizer.file] if bundle.tokenizer else []
    for name in [*used, *bundle.files]:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"files: expected plain file names, found {name!r}")
        if name not in bundle.files:
            raise ConfigError(f"files: {name} is used and not listed")
    for kind in ("prefill", "decode"):
        if not bundle.graphs_of(kind):
            raise ConfigError(f"graphs: expected at least one {kind} graph, found none")
    if bundle.graphs_of("decode")[-1].window != bundle.cache.max_length:
        raise ConfigError(f"graphs: no decode graph has window cache.max_length ({bundle.cache.max_length})")
    return bundle


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"keys {sorted(repeated)} stand in one object twice")
    return dict(pairs)


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
