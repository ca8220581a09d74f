"""Conversion of a model's folder from one layout to another, tensor by tensor."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from ms_weightconv.__about__ import __version__
from ms_weightconv.alignment import align_to_family
from ms_weightconv.contract import write_config
from ms_weightconv.errors import ConfigError
from ms_weightconv.families import FAMILIES
from ms_weightconv.family import Family
from ms_weightconv.mindformers import NAMING_FILE, choose_naming, naming_document
from ms_weightconv.report import Report
from ms_weightconv.sidecar import SIDECAR_FILE, restore_huggingface, write_sidecar
from ms_weightconv.source import Source, open_source
from ms_weightconv.target import parse_size, staged_folder, write_checkpoint, write_ckpt, write_document, write_weights
from ms_weightconv.tensor import Tensor
from ms_weightconv.tokenizer import carry_tokenizer
from ms_weightconv.vocabulary import with_padding, without_padding
from ms_weightconv.words import CASTABLE, CastLoss, Words, cast, parse_dtype

LAYOUTS = ("huggingface", "mindspore", "mindformers", "checkpoint")
FILE_FORMATS = ("safetensors", "ckpt")
_WITH_CKPT = ("mindspore", "mindformers")
_PADDED = ("mindspore", "checkpoint")  # what can say that rows are padding


def convert(
    source: Path,
    target: Path,
    *,
    to: str,
    family: str | Family | None = None,
    dtype: str | None = None,
    max_shard_size: int | str = "5GB",
    overwrite: bool = False,
    progress: bool = True,
    file_format: str = "safetensors",
    workers: int | None = None,
    naming: str | None = None,
    config: Path | Mapping[str, Any] | None = None,
    tokenizer: Path | None = None,
    pad_vocab_to_multiple_of: int | None = None,
) -> Report:
    """Converts a model between Hugging Face's layout and that of contract `model`.

    Memory stays near the size of the largest tensor, whatever the model's size. The target appears complete and
    verified under its name, or not at all.

    Args:
        source: a Hugging Face folder, a folder of contract `model`, or a checkpoint (its step or its root).
        target: the folder to write.
        to: `huggingface` (loads in transformers), `mindspore` (names of contract `model`: config.json and one
            model.safetensors), `mindformers` (its names, beside a Hugging Face config), or `checkpoint` (contract
            `checkpoint`, model tensors only).
        family: for a Hugging Face source whose `model_type` is unknown, the family to read it as; for others, the
            family to write, where it is not the config's `model_type`; or a table of `read_table`.
        dtype: fp32, fp16, bf16 or fp64 to cast float tensors to; None keeps every word as it is.
        max_shard_size: bytes of a Hugging Face shard, or a text such as "5GB".
        overwrite: replace a model's folder at `target` once the new one is complete.
        progress: show a bar on terminals, log lines elsewhere.
        file_format: of a `mindspore` target: safetensors, or ckpt (model.ckpt, as `mindspore.save_checkpoint` writes).
        workers: threads; None takes one a core, at most 4.
        naming: MindFormers' layout: mcore (fc1 with gate and up in turn, its default), mcore-stacked, mcore-apart, wq
            or wq-fused; for a target mcore without it, for a source what its names and `mindformers.json` say.
        config: for a checkpoint without one, the config of contract `model`: a file, its folder, or its values.
        tokenizer: a tokenizer.json or a folder with tokenizer files; None carries over those of the source.
        pad_vocab_to_multiple_of: of a `mindspore` or `checkpoint` target: rows of zeros behind the last id, up to a
            multiple; `vocab_size` stays the true size, and every other target leaves padding out.

    Raises:
        SourceError: the source is missing, damaged or of a kind that is not read.
        ConfigError: its config, or an argument, cannot be converted.
        RuleError: tensors and config do not match, with all names.
        TargetError: the target is in use or did not come back as written.
    """
    start = time.monotonic()
    source, target = Path(source), Path(target)
    if to not in LAYOUTS:
        raise ConfigError(f"to: found {to!r}, expected one of {', '.join(LAYOUTS)}")
    if file_format not in FILE_FORMATS or (file_format == "ckpt" and to not in _WITH_CKPT):
        known = f"safetensors, or ckpt with to {' or '.join(_WITH_CKPT)}"
        raise ConfigError(f"file_format: found {file_format!r} with to {to}, expected {known}")
    if workers is not None and (type(workers) is not int or workers < 1):
        raise ConfigError(f"workers: found {workers!r}, expected a number from 1")
    if pad_vocab_to_multiple_of is not None and to not in _PADDED:
        raise ConfigError(f"pad_vocab_to_multiple_of: found with to {to}; only {' and '.join(_PADDED)} can say it")
    shard_size = parse_size(max_shard_size)
    wanted = None if dtype is None else parse_dtype(dtype)
    opened = open_source(source, family=family, config=config, naming=None if to == "mindformers" else naming)
    losses: dict[str, CastLoss] = {}
    if wanted is not None:
        opened = opened.with_tensors(cast_tensors(opened.tensors, wanted, losses))
    aligned = opened.align()
    chosen = _choose_family(opened, family, to)
    tensors = aligned.tensors
    if to not in _PADDED:
        padded = without_padding(opened.config, tensors)
    elif pad_vocab_to_multiple_of is not None:
        padded = with_padding(opened.config, tensors, pad_vocab_to_multiple_of)
    else:
        padded = opened.config, tensors
    opened, tensors = replace(opened, config=padded[0]), padded[1]
    documents = _documents(opened)
    if to in ("huggingface", "mindformers"):
        assert chosen is not None
        floats = {tensor.dtype for tensor in tensors.values() if tensor.dtype in CASTABLE}
        theirs, generation = restore_huggingface(chosen, opened.config, opened.sidecar, floats, str(source))
        documents = {"config.json": theirs, "generation_config.json": generation}
        table = chosen
        if to == "mindformers":
            table = choose_naming(naming or "mcore")
            documents[NAMING_FILE] = naming_document(table)
        tensors = align_to_family(table, opened.config, tensors, str(source)).tensors
    threads = min(4, os.cpu_count() or 1) if workers is None else workers
    plan = _plan(opened, tensors, documents, (to, file_format, str(naming), str(shard_size), str(wanted)))
    with staged_folder(target, source, is_overwritten=overwrite, plan=plan) as stage:
        for name, values in documents.items():
            write_document(stage / name, values)
        notes = carry_tokenizer(
            _documents_folder(opened, config),
            tokenizer,
            stage,
            opened.config,
            is_huggingface=to in ("huggingface", "mindformers"),
        )
        work: dict[str, Any] = {"workers": threads, "is_shown": progress, "losses": losses}
        if to == "checkpoint":
            values = {"converter": f"ms-weightconv {__version__}", "config": {"model": documents["config.json"]}}
            checksums = write_checkpoint(stage, tensors, values, **work)
        elif file_format == "ckpt":
            checksums = write_ckpt(stage, tensors, is_shown=progress)
        else:
            limit, writer = (shard_size, "pt") if to == "huggingface" else (None, "ms")
            checksums = write_weights(stage, tensors, limit, writer, **work)
    return Report(
        source=source,
        target=target,
        layouts=(opened.layout, to),
        family=chosen.name if chosen else opened.config["model_type"],
        num_tensors=len(tensors),
        num_parameters=sum(prod(tensor.shape) for tensor in tensors.values()),
        num_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
        seconds=time.monotonic() - start,
        checksums={name: f"crc32:{checksums[name]:08x}" for name in tensors},
        dropped=aligned.dropped,
        casts=losses,
        carried_fields=opened.carried,
        unknown_fields=opened.unknown,
        notes=(*opened.notes, *notes),
    )


def cast_tensors(
    tensors: Mapping[str, Tensor], dtype: str, losses: dict[str, CastLoss] | None = None
) -> dict[str, Tensor]:
    """The same tensors, cast when read where they are of another float dtype; what is lost is added to `losses`."""
    into = {} if losses is None else losses
    return {
        name: replace(tensor, dtype=dtype, read=partial(_read_cast, name, tensor, dtype, into))
        if tensor.dtype in CASTABLE and tensor.dtype != dtype
        else tensor
        for name, tensor in tensors.items()
    }


def _read_cast(name: str, tensor: Tensor, dtype: str, losses: dict[str, CastLoss]) -> Words:
    words, losses[name] = cast(tensor.read(), tensor.dtype, dtype)
    return words


def _plan(opened: Source, tensors: Mapping[str, Tensor], documents: Mapping[str, Any], options: tuple[str, ...]) -> str:
    """A name for this conversion: two runs with the same one write the same bytes."""
    files = sorted(opened.path.rglob("*")) if opened.path.is_dir() else [opened.path]
    stats = [(str(path), path.stat()) for path in files if path.is_file()]
    described = [
        __version__,
        options,
        documents,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()],
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]


def _choose_family(opened: Source, asked: str | Family | None, to: str) -> Family | None:
    if opened.layout == "huggingface":
        return opened.family
    if isinstance(asked, Family):
        return asked
    if asked is not None and asked not in FAMILIES:
        raise ConfigError(f"family: found {asked!r}, expected one of {', '.join(FAMILIES)}")
    family = opened.family if asked is None else FAMILIES[asked]
    if family is None and to in ("huggingface", "mindformers"):
        raise ConfigError(
            f"{opened.path}: model_type {opened.config['model_type']!r} is no family known here "
            f"({', '.join(FAMILIES)}); name the one to write (--family)"
        )
    return family


def _documents(opened: Source) -> dict[str, dict[str, Any]]:
    documents = {"config.json": write_config(opened.config)}
    if opened.sidecar is not None:
        documents[SIDECAR_FILE] = write_sidecar(opened.sidecar)
    return documents


def _documents_folder(opened: Source, config: Path | Mapping[str, Any] | None) -> Path:
    """Where a checkpoint's tokenizer lies: beside the config that was given, or in the root."""
    if isinstance(config, Path):
        return config if config.is_dir() else config.parent
    if opened.path.is_file():
        return opened.path.parent
    is_step = opened.layout == "checkpoint" and (opened.path / "COMMIT").exists()
    return opened.path.parent if is_step else opened.path
