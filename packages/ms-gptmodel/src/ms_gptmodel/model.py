# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The language model: embedding, blocks, norm, head. One device; others split it by parameter name.

Shapes: B batch, T positions, R = B T rows. Between embedding and head, activations are rows [R, hidden].
"""

from collections.abc import Iterable

from mindspore import Tensor, nn, ops

from ms_gptmodel.attention import allowed_pairs
from ms_gptmodel.block import make_block
from ms_gptmodel.config import ModelConfig
from ms_gptmodel.dropout import Dropout, ForwardCounter
from ms_gptmodel.head import Head, HeadTransform
from ms_gptmodel.initialization import initial_weight
from ms_gptmodel.kernels import document_ends, select
from ms_gptmodel.moe import RouterLoss
from ms_gptmodel.norms import block_norm
from ms_gptmodel.positions import AlibiPositions, RotaryPositions, Rotation, counted_positions
from ms_gptmodel.projection import Embedding, Projection
from ms_gptmodel.weights import load_weights, named_parameters


class LanguageModel(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """A language model with the call and the parameter names of contract `model`: a decoder, or an encoder.

    In training, with experts and a coefficient for their losses, it returns (logits, auxiliary loss).

    Args:
        config: which model.
        seed: of the fresh weights; a weight depends on the seed and its name alone.
        rank: of several data-parallel ranks, so that they drop different activations.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0, rank: int = 0) -> None:
        super().__init__()
        self.config, self.rank = config, rank
        self.max_length = config.num_positions
        hidden, width, kind = config.hidden_size, config.embedding_size, config.position_kind
        self.embedding = Embedding(config.padded_vocab_size, width)
        self.embedding_multiplier = config.embedding_multiplier
        self.embedding_projection = None if width == hidden else Projection(width, hidden, False)
        self.position_offset = config.position_offset
        num_rows = config.max_position_embeddings + config.position_offset
        self.position_embedding = Embedding(num_rows, hidden) if kind == "learned" else None
        self.token_type_embedding = Embedding(config.type_vocab_size, hidden) if config.type_vocab_size else None
        self.embedding_norm = block_norm(config) if config.embedding_norm else None
        self.rotary = RotaryPositions(config) if kind == "rotary" else None
        has_own_base = config.rope_local_base_freq is not None
        self.local_rotary = RotaryPositions(config, is_local=True) if has_own_base else None
        self.alibi = AlibiPositions(config.num_attention_heads) if kind == "alibi" else None
        self.attention_mask, self.document_ends = select().AttentionMask(), document_ends(config)
        self.is_causal, self.window = config.is_causal, config.sliding_window
        self.any_slides, self.all_slide = any(config.slides), all(config.slides)
        self.blocks = nn.CellList([make_block(config, number) for number in range(config.num_hidden_layers)])
        has_dropout = config.embedding_dropout + config.residual_dropout + config.attention_dropout > 0
        self.counter = self.fresh_counter() if has_dropout else None
        self.embedding_dropout = Dropout(config.embedding_dropout) if config.embedding_dropout > 0 else None
        self.router_loss = RouterLoss(config) if any(block.routes for block in self.blocks) else None
        self.norm = block_norm(config) if config.final_norm else None
        self.head_projection = None if width == hidden else Projection(hidden, width, False)
        self.lm_head_transform = HeadTransform(config) if config.lm_head_transform else None
        self.lm_head = Head(config)
        parameters = named_parameters(self)
        for name, parameter in parameters.items():
            parameter.name = name
        weights = {name: p for name, p in parameters.items() if not name.startswith("counter.")}
        load_weights(self, {name: initial_weight(config, name, p.shape, seed) for name, p in weights.items()})
        # A fresh Cell evaluates under the phase "train": its graph would be found again after set_train(True).
        self.set_train(False)

    def fresh_counter(self) -> ForwardCounter:
        """A counter of this model's calls in training, for all places that draw masks."""
        return ForwardCounter(1 + 3 * self.config.num_hidden_layers, self.config.dropout_seed, self.rank)

    def recompute_blocks(self, numbers: Iterable[int] | None = None, *, attention_only: bool = False) -> None:
        """Lets the backward pass compute these blocks (None: all) again instead of keeping what is inside them.

        With `attention_only`, only what lies between queries, keys and values and their context is computed again:
        the largest arrays for the least work (Korthikanti et al. 2022, section 5). Numbers stay the same, bit for bit.
        Once for a model, before it is compiled. For another part of a block, call `recompute()` of that cell.
        """
        for number in range(len(self.blocks)) if numbers is None else numbers:
            block = self.blocks[number]
            (block.attention.attend if attention_only else block).recompute()

    def embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Rows [R, hidden] of the ids, with their positions where those are learned."""
        rows = self.embedding(input_ids)
        if self.embedding_multiplier != 1.0:
            rows = rows * self.embedding_multiplier
        if self.embedding_projection is not None:
            rows = self.embedding_projection(rows)
        if self.token_type_embedding is not None:
            rows = rows + self.token_type_embedding.weight[0]
        if self.position_embedding is not None:
            rows = rows + self.position_embedding(position_ids + self.position_offset)
        return rows if self.embedding_norm is None else self.embedding_norm(rows)

    def rotations(self, position_ids: Tensor, length: int) -> tuple[Rotation | None, Rotation | None]:
        """What turns queries and keys in layers that see all and in those that slide; None where nothing turns."""
        if self.rotary is None:
            return None, None
        num_heads, num_key_value_heads = self.blocks[0].attention.num_local_heads()
        rotation = self.rotary(position_ids, num_heads, num_key_value_heads, length)
        if self.local_rotary is None:
            return rotation, rotation
        return rotation, self.local_rotary(position_ids, num_heads, num_key_value_heads, length)

    def mask(self, allowed_BTS: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The attention mask from what is allowed and, with ALiBi, the positions [B, T] and [B, S]."""
        batch, num_heads = query_positions.shape[0], self.blocks[0].attention.num_local_heads()[0]
        bias = None
        if self.alibi is not None:
            if num_heads != self.config.num_attention_heads:
                raise ValueError("position_kind alibi: heads cannot be split, a head's slope depends on its number")
            bias = self.alibi(query_positions, key_positions)
        return self.attention_mask(allowed_BTS, batch, num_heads, bias)

    def masks(self, position_ids: Tensor, segment_ids: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The masks of layers that see all and of those that slide, each made once and where there are such layers.

        For kernels that take them, the ends of documents stand in place of the mask of layers that see all.
        """
        length, full, sliding = position_ids.shape[1], None, None
        if not self.all_slide and self.document_ends is not None and self._takes_ends():
            full = self.document_ends(position_ids, segment_ids)
        elif not self.all_slide:
            allowed = allowed_pairs(length, segment_ids, is_causal=self.is_causal)
            full = self.mask(allowed, position_ids, position_ids)
        if self.any_slides:
            allowed = allowed_pairs(length, segment_ids, is_causal=self.is_causal, window=self.window)
            sliding = self.mask(allowed, position_ids, position_ids)
        return full, sliding

    def _takes_ends(self) -> bool:
        if self.document_ends is None:
            return False
        attention = self.blocks[0].attention
        return bool(self.document_ends.fits(attention.query.weight.dtype, attention.num_local_heads()[0]))

    def head(self, rows: Tensor) -> Tensor:
        """Logits [R, vocab]."""
        if self.norm is not None:
            rows = self.norm(rows)
        if self.head_projection is not None:
            rows = self.head_projection(rows)
        if self.lm_head_transform is not None:
            rows = self.lm_head_transform(rows)
        return self.lm_head(rows, self.embedding.weight)

    def construct(
        self, input_ids: Tensor, position_ids: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        batch, length = input_ids.shape
        if length > self.max_length:
            raise ValueError(f"input_ids: rows of {length} ids, max_position_embeddings is {self.max_length}")
        if position_ids is None:
            position_ids = counted_positions(batch, length)
        rows = self.embed(input_ids, position_ids)
        rotation, local_rotation = self.rotations(position_ids, length)
        mask, sliding_mask = self.masks(position_ids, segment_ids)
        keys = self.counter() if self.counter is not None and self.training else None
        if self.embedding_dropout is not None and keys is not None:
            rows = self.embedding_dropout(rows, keys[0], keys[1])
        router_logits = []
        for block in self.blocks:
            if block.slides:
                rows = block(rows, batch, local_rotation, sliding_mask, keys)
            else:
                rows = block(rows, batch, rotation, mask, keys)
            if block.routes:
                rows, logits_RE = rows
                router_logits.append(logits_RE)
        logits = self.head(rows).reshape(batch, length, -1)
        if self.router_loss is None or not self.training:
            return logits
        counts = ops.ones_like(input_ids) if segment_ids is None else segment_ids != 0
        return logits, self.router_loss(router_logits, counts.reshape(-1))
