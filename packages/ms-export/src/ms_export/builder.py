"""Builds a bundle: graphs, weights, probes and tokenizer beside each other, checked before they appear."""

import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from tqdm.auto import tqdm

from ms_export import bundle as bundles
from ms_export.__about__ import __version__
from ms_export.bundle import Bundle, Cache, Defaults, Graph, Parity, TokenizerFile
from ms_export.config import ExportConfig
from ms_export.errors import BundleError, ModelError
from ms_export.mindir import export_graph, int32
from ms_export.model import DECODE_INPUTS, PREFILL_INPUTS, CachedModel
from ms_export.parity import compare, default_probes, probe_source
from ms_export.runtime import Runtime
from ms_export.weights import write_weights

_LOG = logging.getLogger(__name__)
_TOKENIZER_FILES = {"huggingface": "tokenizer.json", "sentencepiece": "tokenizer.model"}


def build(
    output: str | Path,
    *,
    model: CachedModel,
    config: ExportConfig,
    tokenizer: str | Path | None = None,
    tokenizer_kind: str = "huggingface",
    tokenizer_fingerprint: str | None = None,
    probes: Sequence[Sequence[int]] = (),
    overwrite: bool = False,
) -> Path:
    """Exports a model and proves that the export agrees with it.

    Everything is written into a folder beside `output`, loaded again and compared with the Cells; only then it is
    renamed. A failed build leaves nothing behind and an old bundle as it was.

    Args:
        output: The bundle's folder. Its parents are created.
        model: The Cells and their parameters.
        config: Shapes, tolerance and defaults; `slots` and `max_length` must be the model's.
        tokenizer: File to carry along, byte for byte.
        tokenizer_kind: "huggingface" or "sentencepiece".
        tokenizer_fingerprint: Of contract `dataset`; compared with the model config's, if both are there.
        probes: Prompts for the parity check. None given: random ids of lengths that reach every graph.
        overwrite: Replaces an existing bundle once the new one is complete.

    Returns:
        `output`.

    Raises:
        BundleError: `output` exists (or is no bundle that `overwrite` may replace).
        ModelError: The Cells or parameters do not follow contract `model`.
        ParityError: The graphs do not give the Cells' logits.
    """
    output = Path(output).absolute()
    _require_free(output, overwrite)
    _require_match(model, config, tokenizer, tokenizer_kind, tokenizer_fingerprint)
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = output.parent / f".building-{output.name}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        tokens = _copy_tokenizer(folder, tokenizer, tokenizer_kind, tokenizer_fingerprint)
        _write(folder, model, config, tokens, probes)
        _publish(folder, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return output


def _write(
    folder: Path,
    model: CachedModel,
    config: ExportConfig,
    tokens: TokenizerFile | None,
    probes: Sequence[Sequence[int]],
) -> None:
    decode_cells = {window: model.decode(window) for window in config.windows}
    model.require_cells(model.prefill, decode_cells)
    vocab_size = model.vocab_size or model.config.get("vocab_size")
    prompts = probes or default_probes(config, vocab_size or 2)
    source = probe_source(prompts, model, decode_cells, config)
    width = source.prefill_logits.shape[1]
    if vocab_size is not None and not 0 < vocab_size <= width:
        raise ModelError(f"vocab_size: expected 1 to the width of the logits ({width}), found {vocab_size}")
    generation = _defaults(model, config, vocab_size or width)
    source.write(folder / bundles.PARITY)
    write_weights(folder / bundles.WEIGHTS, model.weights, config.precision)
    bundle = Bundle(
        mindspore_version=mindspore.__version__,
        created_by=f"ms-export {__version__}",
        precision=config.precision,
        vocab_size=vocab_size or width,
        files={},
        graphs=_write_graphs(folder, model, decode_cells, config, width),
        cache=Cache(
            slots=model.slots,
            max_length=model.max_length,
            num_layers=model.num_layers,
            num_key_value_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            dtype=config.precision,
            parameters=tuple(f"cache.{n}.{kind}" for n in range(model.num_layers) for kind in ("key", "value")),
        ),
        tokenizer=tokens,
        generation=generation,
        model=dict(model.config),
        parity=Parity(file=bundles.PARITY, tolerance=config.tolerance, max_abs_difference=0.0),
    )
    _LOG.info("comparing %d graphs with the source model", len(bundle.graphs))
    result = compare(Runtime.of(folder, bundle))
    result.require()
    parity = replace(bundle.parity, max_abs_difference=result.max_abs_difference)
    files = {path.name: bundles.describe(path) for path in sorted(folder.iterdir())}
    replace(bundle, files=files, parity=parity).write(folder)


def _write_graphs(
    folder: Path, model: CachedModel, decode_cells: dict[int, Any], config: ExportConfig, width: int
) -> tuple[Graph, ...]:
    wanted = [("prefill", n, config.prefill_batch, model.prefill) for n in sorted(config.prefill_lengths)]
    wanted += [("decode", w, b, decode_cells[w]) for b in sorted(config.decode_batches) for w in config.windows]
    graphs: list[Graph] = []
    used: set[str] = set()
    for kind, size, batch, cell in tqdm(wanted, desc="export", unit="graph", disable=None):
        is_prefill = kind == "prefill"
        name = f"prefill-{size:05d}.mindir" if is_prefill else f"decode-{batch:04d}x{size:05d}.mindir"
        names = PREFILL_INPUTS if is_prefill else DECODE_INPUTS
        shapes = [[batch, size if is_prefill else 1], [batch], [batch]]
        inputs = [int32(np.ones(shape, np.int32)) for shape in shapes]
        exported = export_graph(cell, inputs, {**model.weights, **model.cache})
        (folder / name).write_bytes(exported.data)
        used |= exported.parameters
        calls = tuple({"name": n, "dtype": "int32", "shape": s} for n, s in zip(names, shapes, strict=True))
        logits = ({"name": "logits", "dtype": config.precision, "shape": [batch, width]},)
        place = {"length": size} if is_prefill else {"window": size}
        graphs.append(Graph(kind=kind, file=name, batch=batch, inputs=calls, outputs=logits, **place))
        _LOG.info("%s: %.2f MB", name, len(exported.data) / 1e6)
    if unused := sorted({*model.weights, *model.cache} - used):
        raise ModelError(f"model: the cells never use {unused}; they are wired wrongly, or do not belong here")
    return tuple(graphs)


def _defaults(model: CachedModel, config: ExportConfig, vocab_size: int) -> Defaults:
    ends = config.eos_token_ids or model.config.get("eos_token_id")
    ends = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
    bos, pad = model.config.get("bos_token_id"), model.config.get("pad_token_id")
    for name, ids in (("eos_token_id", ends), ("bos_token_id", (bos,)), ("pad_token_id", (pad,))):
        if wrong := [i for i in ids if i is not None and not 0 <= i < vocab_size]:
            raise ModelError(f"model.config.{name}: {wrong[0]} is outside the vocabulary of {vocab_size}")
    return Defaults(
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=bos,
        pad_token_id=pad,
        max_new_tokens=config.max_new_tokens,
        temperature=float(config.temperature),
        top_k=config.top_k,
        top_p=float(config.top_p),
    )


def _require_free(output: Path, overwrite: bool) -> None:
    if not output.exists() and not output.is_symlink():
        return
    if not overwrite:
        raise BundleError(
            f"{output}: exists already; choose another folder, or replace it with overwrite (--overwrite)"
        )
    if output.is_symlink() or not output.is_dir():
        raise BundleError(f"{output}: is no folder, so overwrite does not touch it")
    if any(output.iterdir()) and not (output / bundles.DOCUMENT).is_file():
        raise BundleError(f"{output}: holds other things than a bundle, so overwrite does not touch it")


def _require_match(
    model: CachedModel, config: ExportConfig, tokenizer: str | Path | None, kind: str, fingerprint: str | None
) -> None:
    for name in ("slots", "max_length"):
        if getattr(model, name) != getattr(config, name):
            raise ModelError(
                f"export.{name}: expected the model's {getattr(model, name)}, found {getattr(config, name)}; "
                "build the cached model from the same configuration"
            )
    if tokenizer is not None and not Path(tokenizer).is_file():
        raise BundleError(f"{tokenizer}: no such tokenizer file")
    if kind not in _TOKENIZER_FILES:
        raise BundleError(f"tokenizer_kind: expected one of {', '.join(_TOKENIZER_FILES)}, found {kind!r}")
    trained = model.config.get("tokenizer_fingerprint")
    if tokenizer is not None and None not in (trained, fingerprint) and trained != fingerprint:
        raise BundleError(
            f"{tokenizer}: fingerprint {fingerprint} is not the one the model was trained with ({trained})"
        )


def _copy_tokenizer(
    folder: Path, tokenizer: str | Path | None, kind: str, fingerprint: str | None
) -> TokenizerFile | None:
    if tokenizer is None:
        return None
    name = _TOKENIZER_FILES[kind]
    (folder / name).write_bytes(Path(tokenizer).read_bytes())
    return TokenizerFile(file=name, kind=kind, fingerprint=fingerprint)


def _publish(folder: Path, output: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        _sync(path)
    old = output.parent / f".replaced-{output.name}-{secrets.token_hex(4)}"
    if output.exists():
        output.rename(old)
    folder.rename(output)
    _sync(output.parent)
    if old.exists():
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
