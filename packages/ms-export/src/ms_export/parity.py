"""The proof that a bundle's graphs give the source model's logits: probes, their logits, and the comparison."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ms_export import bundle as bundles
from ms_export.config import ExportConfig
from ms_export.errors import BundleError, ModelError, ParityError
from ms_export.generation import require_ids
from ms_export.lanes import decode_lanes, prefill_lanes
from ms_export.mindir import evaluation_mode, int32
from ms_export.model import CachedModel
from ms_export.runtime import Runtime

_STEPS = 8
_DTYPES = {
    "input_ids": "int32",
    "lengths": "int32",
    "decode_ids": "int32",
    "prefill_logits": "float32",
    "decode_logits": "float32",
}


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Content of `parity.npz`."""

    prompts: list[list[int]]
    """Probe inputs."""
    decode_ids: npt.NDArray[np.int32]
    """`[probes, steps]`: the ids fed one by one after each prompt."""
    prefill_logits: npt.NDArray[np.float32]
    """`[probes, vocab]`: the source model's, after each prompt."""
    decode_logits: npt.NDArray[np.float32]
    """`[probes, steps, vocab]`: after each further id."""

    def write(self, path: Path) -> None:
        """Writes the file, prompts padded on the right with id 0."""
        lengths = np.array([len(p) for p in self.prompts], np.int32)
        input_ids = np.zeros((len(self.prompts), lengths.max()), np.int32)
        for row, prompt in zip(input_ids, self.prompts, strict=True):
            row[: len(prompt)] = prompt
        np.savez(
            path, input_ids=input_ids, lengths=lengths, decode_ids=self.decode_ids,
            prefill_logits=self.prefill_logits, decode_logits=self.decode_logits,
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> "Probes":
        """Reads the file; raises BundleError when arrays are missing or of other shapes."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise BundleError(f"{path}: not readable: {error}") from error
        found = {name: array.dtype.name for name, array in arrays.items()}
        if found != _DTYPES:
            raise BundleError(f"{path}: expected arrays {_DTYPES}, found {found}")
        ids, lengths, steps = arrays["input_ids"], arrays["lengths"], arrays["decode_ids"]
        count, vocab = len(ids), arrays["prefill_logits"].shape[-1]
        if not count or arrays["prefill_logits"].shape != (count, vocab) or lengths.shape != (count,):
            raise BundleError(f"{path}: arrays are of different numbers of probes")
        if arrays["decode_logits"].shape != (*steps.shape, vocab) or len(steps) != count:
            raise BundleError(f"{path}: decode_logits do not belong to decode_ids")
        prompts = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
        return cls(
            prompts=prompts, decode_ids=steps, prefill_logits=arrays["prefill_logits"],
            decode_logits=arrays["decode_logits"],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """How a bundle's graphs compare with the source model."""

    max_abs_difference: float
    """Largest difference of a logit, over all graphs."""
    max_abs_logit: float
    """Largest logit of the source model."""
    tolerance: float
    """Allowed difference as a share of `max_abs_logit`."""
    by_graph: dict[str, float]
    """Graph file -> its largest difference."""

    @property
    def allowed(self) -> float:
        """Largest difference that passes."""
        return self.tolerance * self.max_abs_logit

    def require(self) -> None:
        """Raises ParityError, naming the graphs that are beyond the tolerance."""
        wrong = {name: d for name, d in self.by_graph.items() if not d <= self.allowed}
        if wrong:
            worst = ", ".join(f"{name} by {difference:.3g}" for name, difference in wrong.items())
            raise ParityError(
                f"graphs differ from the source model: {worst}; allowed are {self.allowed:.3g} "
                f"(tolerance {self.tolerance:g} of the largest logit {self.max_abs_logit:.4g})"
            )


def check(folder: str | Path) -> CheckResult:
    """Loads a bundle, feeds its probes to every graph and compares with the source model's logits.

    Raises:
        BundleError: The bundle is not whole.
        ParityError: A graph differs by more than the bundle's tolerance.
    """
    runtime = Runtime(folder)
    result = compare(runtime)
    result.require()
    return result


def compare(runtime: Runtime) -> CheckResult:
    """Feeds the probes to every graph of a loaded bundle; a graph that no probe fits is an error."""
    probes = Probes.read(runtime.folder / runtime.bundle.parity.file)
    vocab = runtime.bundle.vocab_size
    if probes.prefill_logits.shape[-1] < vocab:
        raise BundleError(f"parity.npz: logits of {probes.prefill_logits.shape[-1]} ids, the vocabulary has {vocab}")
    by_graph = {}
    for graph in runtime.bundle.graphs:
        difference = _prefill_difference if graph.kind == "prefill" else _decode_difference
        by_graph[graph.file] = difference(runtime, graph, probes)
    largest = max(by_graph.values()) if all(np.isfinite(list(by_graph.values()))) else float("inf")
    sources = (probes.prefill_logits[:, :vocab], probes.decode_logits[..., :vocab])
    return CheckResult(
        max_abs_difference=largest,
        max_abs_logit=float(max(np.abs(source).max(initial=0) for source in sources)),
        tolerance=runtime.bundle.parity.tolerance,
        by_graph=by_graph,
    )


def probe_source(
    prompts: Sequence[Sequence[int]], model: CachedModel, decode_cells: Mapping[int, Any], config: ExportConfig
) -> Probes:
    """Runs the source Cells on the probes, in evaluation mode, continuing each prompt with its likeliest ids.

    Their cache holds the probes afterwards; what a cache holds beyond a lane's position is never seen.

    Raises:
        ModelError: The Cells do not answer as contract `model` says.
        PromptError: A probe is no possible prompt.
        ParityError: No probe is short enough for some graph.
    """
    longest = min(max(config.prefill_lengths), config.max_length - 1)
    limit = model.vocab_size or model.config.get("vocab_size") or 2**31
    ready = require_ids(prompts, longest=longest, vocab_size=limit)
    shortest = min(len(prompt) for prompt in ready)
    if shortest > min(config.prefill_lengths) or shortest >= min(config.windows):
        raise ParityError(
            f"probes: the shortest has {shortest} ids, so no probe is short enough for prefill length "
            f"{min(config.prefill_lengths)} and window {min(config.windows)}; add a shorter one"
        )
    steps = min(_STEPS, config.max_length - max(len(p) for p in ready))
    batch, window, scratch = min(config.decode_batches), config.max_length, model.slots - 1
    firsts, nexts, fed = [], [], []
    with evaluation_mode(model.prefill, *decode_cells.values()):
        for prompt in ready:
            length = min(n for n in config.prefill_lengths if n >= len(prompt))
            lanes = prefill_lanes([prompt], [0], batch=config.prefill_batch, length=length, scratch=scratch)
            rows, ids = [_answer(model.prefill, lanes)], []
            for step in range(steps):
                ids.append(int(rows[-1][:limit].argmax()))
                lanes = decode_lanes(ids[-1:], [len(prompt) + step], [0], batch=batch, scratch=scratch)
                rows.append(_answer(decode_cells[window], lanes))
            firsts.append(rows[0])
            nexts.append(rows[1:])
            fed.append(ids)
    return Probes(
        prompts=ready,
        decode_ids=np.array(fed, np.int32),
        prefill_logits=np.array(firsts, np.float32),
        decode_logits=np.array(nexts, np.float32),
    )


def default_probes(config: ExportConfig, vocab_size: int) -> list[list[int]]:
    """Two prompts of random ids per prefill graph: one that fills it (as far as decoding has room), one of a third."""
    random = np.random.default_rng(0)
    room = config.max_length - min(_STEPS, config.max_length - 1)
    lengths = {min(part, room) for n in config.prefill_lengths for part in (n, (n + 2) // 3)}
    return [random.integers(0, vocab_size, length).tolist() for length in sorted({1, *lengths})]


def _answer(cell: Any, lanes: Sequence[npt.NDArray[np.int32]]) -> npt.NDArray[np.float32]:
    logits = cell(*(int32(lane) for lane in lanes)).asnumpy()
    if logits.ndim != 2 or len(logits) != len(lanes[0]) or logits.dtype != np.float32:
        raise ModelError(
            f"{type(cell).__name__}: expected float32 logits [batch {len(lanes[0])}, vocab], "
            f"found {logits.dtype.name} {list(logits.shape)}"
        )
    if not np.isfinite(logits[0]).all():
        raise ModelError(f"{type(cell).__name__}: its logits are not finite; the weights are bad")
    return np.array(logits[0])


def _prefill_difference(runtime: Runtime, graph: bundles.Graph, probes: Probes) -> float:
    fitting = [n for n, prompt in enumerate(probes.prompts) if len(prompt) <= graph.size]
    found = []
    for chosen in _groups(fitting, graph.batch):
        logits = runtime.call_prefill(graph, [probes.prompts[n] for n in chosen], range(len(chosen)))
        found.append(np.abs(logits - probes.prefill_logits[chosen, : logits.shape[1]]).max())
    return _largest(graph, found)


def _decode_difference(runtime: Runtime, graph: bundles.Graph, probes: Probes) -> float:
    """All lanes of the graph at once, at their unequal positions, as far as the window reaches."""
    found = []
    for chosen in _groups(range(len(probes.prompts)), graph.batch):
        slots = list(range(len(chosen)))
        runtime.prefill([probes.prompts[n] for n in chosen], slots)
        for step in range(probes.decode_ids.shape[1]):
            lanes = [(n, s) for n, s in zip(chosen, slots, strict=True) if len(probes.prompts[n]) + step < graph.size]
            if not lanes:
                break
            logits = runtime.call_decode(
                graph,
                [int(probes.decode_ids[n, step]) for n, _ in lanes],
                [len(probes.prompts[n]) + step for n, _ in lanes],
                [s for _, s in lanes],
            )
            expected = probes.decode_logits[[n for n, _ in lanes], step, : logits.shape[1]]
            found.append(np.abs(logits - expected).max())
    return _largest(graph, found)


def _groups(numbers: Sequence[int], size: int) -> list[list[int]]:
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]


def _largest(graph: bundles.Graph, differences: Sequence[Any]) -> float:
    if not differences:
        raise ParityError(f"{graph.file}: no probe is short enough to check it; add a shorter one")
    return float(np.max(differences))  # NaN stays NaN, which no tolerance allows
