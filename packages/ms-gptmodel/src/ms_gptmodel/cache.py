# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The cached call of contract `model`: a decoder over the model's own parameters, its cache in slots.

Shapes: B lanes of a call, T prompt positions, K key/value heads, W window, D head_dim.
"""

from mindspore import Parameter, Tensor, get_context, nn, ops
from mindspore import dtype as mstype

from ms_gptmodel.block import Block
from ms_gptmodel.errors import InputError
from ms_gptmodel.greedy import GreedyCell
from ms_gptmodel.model import LanguageModel
from ms_gptmodel.positions import counted_positions
from ms_gptmodel.weights import named_parameters


class CachedDecoder:
    """Keys and values of up to `slots` sequences, and the two cells that fill and use them.

    The cells have static shapes and no state but the cache Parameters, so they can be exported as they are. They
    share the model's parameters: what training changes, they see. Making a decoder gives the model's parameters
    their contract names back, because an exported graph is filled by name.

    Args:
        model: the model.
        slots: sequences in the cache; the last one is scratch, where inactive lanes point.
        max_length: positions of a slot, prompt and new ids together; at most max_position_embeddings.

    Raises InputError for a size that cannot be.
    """

    def __init__(self, model: LanguageModel, *, slots: int, max_length: int) -> None:
        config = model.config
        if slots < 2:
            raise InputError(f"slots: expected 2 or more (the last one is scratch), found {slots}")
        if not config.is_causal:
            raise InputError("is_causal is false: an encoder sees later positions, so nothing of it can be cached")
        if not 1 <= max_length <= config.num_positions:
            limit = config.num_positions
            raise InputError(f"max_length: expected 1 to max_position_embeddings {limit}, found {max_length}")
        self.model, self.slots, self.max_length = model, slots, max_length
        for name, parameter in named_parameters(model).items():
            parameter.name = name
        num_key_value_heads = model.blocks[0].attention.num_local_heads()[1]
        shape = (slots * num_key_value_heads * max_length, config.head_dim)
        self._layers = [_CachedBlock(block, index, shape) for index, block in enumerate(model.blocks)]
        self._decodes: dict[int, nn.Cell] = {}
        self._greedy: dict[tuple[int, int, int], GreedyCell] = {}
        self._storage: tuple[int, ...] = ()
        self.prefill = PrefillCell(model, self._layers, max_length)
        """input_ids [batch, length], lengths [batch], slots [batch], all int32 -> logits [batch, vocab]."""
        self.decode = self.decode_cell(max_length)
        """input_ids [batch, 1], positions [batch], slots [batch], all int32 -> logits [batch, vocab]."""

    @property
    def cache_parameters(self) -> dict[str, Parameter]:
        """`cache.N.key` and `cache.N.value` of every layer, [slots * num_key_value_heads * max_length, head_dim]."""
        return {cache.name: cache for layer in self._layers for cache in (layer.key, layer.value)}

    def prefill_cell(self) -> nn.Cell:
        """The cell that reads prompts; `length` is whatever its input has, up to max_length."""
        return self.prefill

    def decode_cell(self, window: int) -> nn.Cell:
        """The cell that adds one id a lane and reads rows 0 ... window - 1 of its slot: positions below `window`."""
        if not 1 <= window <= self.max_length:
            raise InputError(f"window: expected 1 to max_length {self.max_length}, found {window}")
        if window not in self._decodes:
            self._decodes[window] = DecodeCell(self.model, self._layers, self.max_length, window)
        return self._decodes[window]

    def greedy_cell(self, window: int, vocab_size: int, num_steps: int) -> GreedyCell:
        """The cell that makes `num_steps` greedy steps in one call, with what `decode_cell(window)` sees.

        A graph with a loop keeps the storage that it first ran on: after `Parameter.set_data` it would go on with the
        old weights without a word. So on CPU, where addresses are stable, new storage means new cells; elsewhere write
        in place (`mindspore.ops.assign`) or make a new decoder.
        """
        if get_context("device_target") == "CPU":
            storage = tuple(parameter.data_ptr() for parameter in self.model.get_parameters())
            if storage != self._storage:
                self._greedy.clear()
            self._storage = storage
        key = (window, vocab_size, num_steps)
        if key not in self._greedy:
            decode = DecodeCell(self.model, self._layers, self.max_length, window)
            cell = GreedyCell(decode, window=window, vocab_size=vocab_size, num_steps=num_steps)
            self._greedy[key] = cell
        return self._greedy[key]


class PrefillCell(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Reads right-padded prompts; what the padding writes into the cache is overwritten before anything sees it."""

    def __init__(self, model: LanguageModel, layers: list["_CachedBlock"], max_length: int) -> None:
        super().__init__(auto_prefix=False)  # putting the model in here must not rename its parameters
        self.model, self.max_length = model, max_length
        self.layers = nn.CellList(layers, auto_prefix=False)

    def construct(self, input_ids: Tensor, lengths: Tensor, slots: Tensor) -> Tensor:
        batch, length = input_ids.shape
        if length > self.max_length:
            raise ValueError(f"input_ids: prompts of {length} ids, max_length is {self.max_length}")
        positions = counted_positions(batch, length)
        rows = self.model.embed(input_ids, positions)
        rotation, local_rotation = self.model.rotations(positions, self.max_length)
        mask, sliding_mask = self.model.masks(positions, None)
        starts_BK = _slot_starts(slots, self.model.blocks[0].attention.num_local_heads()[1], self.max_length)
        rows_BKT = starts_BK.expand_dims(2) + positions.expand_dims(1)
        for layer in self.layers:
            if layer.block.slides:
                rows = layer.prefill(rows, batch, local_rotation, sliding_mask, rows_BKT)
            else:
                rows = layer.prefill(rows, batch, rotation, mask, rows_BKT)
        last_B = ops.cast(ops.arange(batch), mstype.int32) * length + lengths - 1
        return self.model.head(ops.gather(rows, last_B, 0))


class DecodeCell(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Adds one id to every lane and returns the logits of the next.

    A layer that slides reads its last rows only, from wherever they begin in each lane's slot.
    """

    def __init__(self, model: LanguageModel, layers: list["_CachedBlock"], max_length: int, window: int) -> None:
        super().__init__(auto_prefix=False)  # putting the model in here must not rename its parameters
        self.model, self.max_length, self.window = model, max_length, window
        self.layers = nn.CellList(layers, auto_prefix=False)
        self.sliding_window = min(model.config.sliding_window or window, window)
        self.any_slides, self.all_slide = any(model.config.slides), all(model.config.slides)

    def construct(self, input_ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        batch = input_ids.shape[0]
        positions_B1 = positions.reshape(batch, 1)
        rows = self.model.embed(input_ids, positions_B1)
        rotation, local_rotation = self.model.rotations(positions_B1, self.max_length)
        starts_BK = _slot_starts(slots, self.model.blocks[0].attention.num_local_heads()[1], self.max_length)
        row_BK = starts_BK + positions_B1
        mask, window_BKW, sliding_mask, sliding_BKW = None, None, None, None
        if self.any_slides:
            first_B1 = ops.maximum(positions_B1 - (self.sliding_window - 1), 0)
            sliding_mask, sliding_BKW = self._seen(positions_B1, first_B1, self.sliding_window, starts_BK)
        if not self.all_slide:
            mask, window_BKW = self._seen(positions_B1, ops.zeros_like(positions_B1), self.window, starts_BK)
        for layer in self.layers:
            if layer.block.slides:
                rows = layer.decode(rows, batch, local_rotation, sliding_mask, row_BK, sliding_BKW)
            else:
                rows = layer.decode(rows, batch, rotation, mask, row_BK, window_BKW)
        return self.model.head(rows)

    def _seen(self, positions_B1: Tensor, first_B1: Tensor, count: int, starts_BK: Tensor) -> tuple[Tensor, Tensor]:
        """The mask of `count` positions from `first` on, and their rows in the cache."""
        seen_BW = first_B1 + ops.cast(ops.arange(count), mstype.int32).reshape(1, -1)
        mask = self.model.mask((seen_BW <= positions_B1).expand_dims(1), positions_B1, seen_BW)
        return mask, starts_BK.expand_dims(2) + seen_BW.expand_dims(1)


class _CachedBlock(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """A block of the model with its keys and values, used once for a prompt or once for a token."""

    def __init__(self, block: Block, index: int, shape: tuple[int, int]) -> None:
        super().__init__(auto_prefix=False)
        kind = block.attention.query.weight.dtype
        self.block = block
        self.key = Parameter(ops.zeros(shape, kind), name=f"cache.{index}.key", requires_grad=False)
        self.value = Parameter(ops.zeros(shape, kind), name=f"cache.{index}.value", requires_grad=False)
        self.write = ops.ScatterUpdate()

    def prefill(
        self, rows: Tensor, batch: int, rotation: tuple[Tensor, ...] | None, mask: Tensor, rows_BKT: Tensor
    ) -> Tensor:
        query, key, value = self.block.heads(rows, batch, rotation)
        self.write(self.key, rows_BKT, key)
        self.write(self.value, rows_BKT, value)
        return self.block.add(rows, self.block.attention.attend(query, key, value, mask))[0]

    def decode(
        self,
        rows: Tensor,
        batch: int,
        rotation: tuple[Tensor, ...] | None,
        mask: Tensor,
        row_BK: Tensor,
        window_BKW: Tensor,
    ) -> Tensor:
        query, key_BK1D, value_BK1D = self.block.heads(rows, batch, rotation)
        # Gathering straight from the update's result reads the cache in place; any reshape between would copy it.
        keys = ops.gather(self.write(self.key, row_BK, key_BK1D.squeeze(2)), window_BKW, 0)
        values = ops.gather(self.write(self.value, row_BK, value_BK1D.squeeze(2)), window_BKW, 0)
        return self.block.add(rows, self.block.attention.attend(query, keys, values, mask))[0]


def _slot_starts(slots: Tensor, num_key_value_heads: int, max_length: int) -> Tensor:
    """First cache row of every slot and head, int32 [B, K]."""
    heads_K = ops.cast(ops.arange(num_key_value_heads), mstype.int32)
    return (slots.reshape(-1, 1) * num_key_value_heads + heads_K) * max_length
