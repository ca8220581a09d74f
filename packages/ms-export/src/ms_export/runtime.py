"""Runs a bundle: nothing but its files, MindSpore and numpy."""

import logging
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Tensor

from ms_export import bundle as bundles
from ms_export.bundle import Bundle, Graph
from ms_export.errors import BundleError, MissingExtraError, PromptError
from ms_export.generation import Generation, Stop, Token, collect, require_ids, require_seed, stream
from ms_export.lanes import Int32, decode_lanes, prefill_lanes
from ms_export.mindir import load_graphs
from ms_export.sampling import Sampling
from ms_export.text import TextPiece, Vocabulary, stream_text
from ms_export.weights import read_weights

Logits = npt.NDArray[np.float32]
_LOG = logging.getLogger(__name__)


class Runtime:
    """A loaded bundle.

    Graphs compile at their first call (or in `warm_up`). All methods may be called from several threads; calls of
    graphs run one after another.
    """

    def __init__(self, folder: str | Path, *, verify: bool = True) -> None:
        """Loads a bundle.

        Args:
            folder: The bundle.
            verify: Hashes every file first. False still reads and checks `bundle.json`.

        Raises:
            BundleError: The bundle is incomplete, changed, of another version, or does not load.
        """
        folder = Path(folder)
        bundle = bundles.read(folder)
        if verify:
            bundles.verify(folder, bundle)
        self._load(folder, bundle)

    @classmethod
    def of(cls, folder: Path, bundle: Bundle) -> "Runtime":
        """Loads files that a document in memory describes, unverified: for the exporter's own check."""
        runtime = cls.__new__(cls)
        runtime._load(folder, bundle)
        return runtime

    def _load(self, folder: Path, bundle: Bundle) -> None:
        self.bundle, self.folder = bundle, folder
        if bundle.precision != "float32" or bundle.cache.dtype != "float32":
            found = f"{bundle.precision}, cache {bundle.cache.dtype}"
            raise BundleError(f"{folder}: precision {found}; this version of ms-export runs float32")
        if bundle.mindspore_version != mindspore.__version__:
            _LOG.warning(
                "%s was exported by MindSpore %s and runs on %s; `ms-export check` tells whether it still agrees",
                folder,
                bundle.mindspore_version,
                mindspore.__version__,
            )
        dtype = getattr(mindspore, bundle.cache.dtype)
        cache = {name: Tensor(np.zeros(bundle.cache.shape), dtype) for name in bundle.cache.parameters}
        paths = {graph.file: folder / graph.file for graph in bundle.graphs}
        self._cells = load_graphs(paths, read_weights(folder / bundles.WEIGHTS), cache)
        self._prefill_graphs, self._decode_graphs = bundle.graphs_of("prefill"), bundle.graphs_of("decode")
        self._free_slots = list(range(bundle.cache.scratch))
        self._slots_lock, self._call_lock = threading.Lock(), threading.Lock()
        self._vocabulary: Vocabulary | None = None

    @property
    def max_length(self) -> int:
        """Ids that a prompt and its continuation can have together."""
        return self.bundle.cache.max_length

    @property
    def longest_prompt(self) -> int:
        """Ids that a prompt can have."""
        return self._prefill_graphs[-1].size

    @property
    def vocabulary(self) -> Vocabulary:
        """The bundle's tokenizer.

        Raises:
            PromptError: The bundle carries none that can be read.
            MissingExtraError: The extra `text` is not installed.
        """
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.folder, self.bundle)
        return self._vocabulary

    @property
    def has_vocabulary(self) -> bool:
        """Whether text goes in and out: the bundle carries a tokenizer, and the library that reads it is there."""
        try:
            return self.vocabulary is not None
        except (PromptError, MissingExtraError):
            return False

    def warm_up(self) -> None:
        """Compiles every graph by one call on scratch."""
        for graph in self._prefill_graphs:
            self.call_prefill(graph, [], [])
        for graph in self._decode_graphs:
            self.call_decode(graph, [], [], [])

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> Logits:
        """Writes prompts into slots and returns the logits `[prompts, vocab_size]` after each.

        Raises:
            PromptError: A prompt is empty, too long or not ids; a slot does not exist or is named twice.
        """
        ready = require_ids(prompts, longest=self.longest_prompt, vocab_size=self.bundle.vocab_size)
        self._require_slots(slots, len(ready))
        rows: list[Logits] = []
        start = 0
        while start < len(ready):
            longest = len(ready[start])
            graph = next(g for g in self._prefill_graphs if g.size >= longest)
            stop = start + 1
            while stop < len(ready) and stop - start < graph.batch and len(ready[stop]) <= graph.size:
                stop += 1
            rows.append(self.call_prefill(graph, ready[start:stop], slots[start:stop]))
            start = stop
        return np.concatenate(rows) if rows else np.zeros((0, self.bundle.vocab_size), np.float32)

    def decode(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Logits:
        """Writes one id per lane at its position and returns the logits `[lanes, vocab_size]` after it.

        Raises:
            PromptError: An id, position or slot is not one of the bundle's.
        """
        require_ids([ids] if len(ids) else [], longest=len(ids), vocab_size=self.bundle.vocab_size)
        self._require_slots(slots, len(ids))
        if len(positions) != len(ids):
            raise PromptError(f"positions: expected one for each of {len(ids)} ids, found {len(positions)}")
        if wrong := [p for p in positions if not 0 <= p < self.max_length]:
            raise PromptError(f"positions: expected 0 to {self.max_length - 1}, found {wrong[0]}")
        rows: list[Logits] = []
        start = 0
        while start < len(ids):
            graph = self._decode_graph(len(ids) - start, max(positions[start:]))
            lanes = slice(start, start + graph.batch)
            rows.append(self.call_decode(graph, ids[lanes], positions[lanes], slots[lanes]))
            start += graph.batch
        return np.concatenate(rows) if rows else np.zeros((0, self.bundle.vocab_size), np.float32)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        eos_token_ids: Sequence[int] | None = None,
        seed: int = 0,
        stop: Stop | None = None,
    ) -> Generator[Token, None, None]:
        """Yields new ids of all prompts as they come; see `generate`.

        Args:
            stop: Called with (prompt number, new id); a true answer ends that prompt.
        """
        defaults = self.bundle.generation
        sampling = Sampling(
            max_new_tokens=defaults.max_new_tokens if max_new_tokens is None else max_new_tokens,
            temperature=defaults.temperature if temperature is None else temperature,
            top_k=defaults.top_k if top_k is None else top_k,
            top_p=defaults.top_p if top_p is None else top_p,
        )
        ready = require_ids(prompts, longest=self.longest_prompt, vocab_size=self.bundle.vocab_size)
        ends = defaults.eos_token_ids if eos_token_ids is None else eos_token_ids
        return stream(self, ready, sampling=sampling, eos_token_ids=ends, seed=require_seed(seed), stop=stop)

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Generation]:
        """Continues prompts of any lengths together, each as it would be continued alone.

        Args:
            prompts: Ids; each of 1 to `longest_prompt`, any number of them.
            options: Those of `stream`: max_new_tokens, temperature, top_k, top_p, eos_token_ids (None takes the
                bundle's default), seed (prompt n is sampled with `seed + n`), stop.

        Returns:
            For each prompt the new ids and why they ended.

        Raises:
            PromptError: A prompt or an option cannot be served, or all slots are in use by other streams.
        """
        return collect(self.stream(prompts, **options), len(prompts))

    def stream_text(
        self, prompts: Sequence[str], *, stop: Sequence[str] = (), **options: Any
    ) -> Generator[TextPiece, None, None]:
        """Yields new text of all prompts as it comes; `stop` are strings that end a text and are not part of it."""
        if isinstance(prompts, str):
            raise PromptError("prompts: expected a list of texts, found one text")
        return self.continue_text([self.vocabulary.encode(text) for text in prompts], stop=stop, **options)

    def continue_text(
        self, prompts: Sequence[Sequence[int]], *, stop: Sequence[str] = (), **options: Any
    ) -> Generator[TextPiece, None, None]:
        """The same for prompts that are ids already; no begin id is put before them."""
        return stream_text(self.vocabulary, prompts, stop, lambda ended: self.stream(prompts, stop=ended, **options))

    def generate_text(self, prompts: Sequence[str], *, stop: Sequence[str] = (), **options: Any) -> list[str]:
        """Continues texts; needs the extra `text` and a bundle with a tokenizer.

        Args:
            prompts: Texts. The bundle's `bos_token_id`, if any, goes before each.
            stop: Strings that end a text.
            options: As for `generate`.

        Returns:
            For each prompt the new text alone.
        """
        texts = [""] * len(prompts)
        for piece in self.stream_text(prompts, stop=stop, **options):
            texts[piece.prompt] += piece.text
        return texts

    def take_slots(self, wanted: int) -> list[int]:
        """Takes up to `wanted` free slots out of use by others; the largest decode batch bounds them.

        Raises:
            PromptError: None is free.
        """
        limit = max(g.batch for g in self._decode_graphs)
        with self._slots_lock:
            taken = self._free_slots[: min(wanted, limit)]
            if wanted and not taken:
                raise PromptError(f"all {self.bundle.cache.scratch} slots are in use by other streams; end one first")
            self._free_slots = self._free_slots[len(taken) :]
        return taken

    def return_slots(self, slots: Sequence[int]) -> None:
        """Gives slots back."""
        with self._slots_lock:
            self._free_slots = sorted([*self._free_slots, *slots])

    def call_prefill(self, graph: Graph, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> Logits:
        """One call of one graph, with at most `graph.batch` prompts of at most `graph.length` ids, unchecked."""
        lanes = prefill_lanes(prompts, slots, batch=graph.batch, length=graph.size, scratch=self.bundle.cache.scratch)
        return self._call(graph, lanes)[: len(prompts)]

    def call_decode(self, graph: Graph, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Logits:
        """One call of one graph, with at most `graph.batch` lanes at positions below `graph.window`, unchecked."""
        lanes = decode_lanes(ids, positions, slots, batch=graph.batch, scratch=self.bundle.cache.scratch)
        return self._call(graph, lanes)[: len(ids)]

    def _call(self, graph: Graph, lanes: tuple[Int32, Int32, Int32]) -> Logits:
        with self._call_lock:
            logits = self._cells[graph.file](*(Tensor(lane) for lane in lanes))
            # A copy: on CPU asnumpy is a view of memory that the next call may use again.
            return np.array(logits.asnumpy()[:, : self.bundle.vocab_size], np.float32)

    def _decode_graph(self, lanes: int, position: int) -> Graph:
        fitting = [g for g in self._decode_graphs if g.size > position]
        fitting = [g for g in fitting if g.size == fitting[0].size]
        return next((g for g in fitting if g.batch >= lanes), fitting[-1])

    def _require_slots(self, slots: Sequence[int], count: int) -> None:
        if len(slots) != count:
            raise PromptError(f"slots: expected one for each of {count} lanes, found {len(slots)}")
        if wrong := [s for s in slots if not 0 <= s < self.bundle.cache.scratch]:
            raise PromptError(f"slots: expected 0 to {self.bundle.cache.scratch - 1}, found {wrong[0]}")
        if len(set(slots)) != len(slots):
            raise PromptError(f"slots: expected each once, found {list(slots)}")
