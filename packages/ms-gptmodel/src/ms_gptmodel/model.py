# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The language model: embedding, blocks, norm, head. One device; others split it by parameter name.

Shapes: B batch, T positions, R = B T rows. Between embedding and head, activations are rows [R, hidden].
"""

from mindspore import Tensor, nn

from ms_gptmodel.attention import Attention, allowed_pairs
from ms_gptmodel.config import ModelConfig
from ms_gptmodel.feed_forward import FeedForward
from ms_gptmodel.initialization import initial_weight
from ms_gptmodel.kernels import select
from ms_gptmodel.norms import block_norm
from ms_gptmodel.positions import RotaryPositions, counted_positions
from ms_gptmodel.projection import Embedding, Projection
from ms_gptmodel.weights import load_weights, named_parameters


class Block(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = block_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = block_norm(config)
        self.mlp = FeedForward(config)

    def heads(self, rows: Tensor, batch: int, rotation: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor, Tensor]:
        """This layer's queries, keys and values."""
        return self.attention.heads(self.attention_norm(rows), batch, rotation)

    def add(self, rows: Tensor, context_BNTD: Tensor) -> Tensor:
        """The rows after this layer, given what its attention gathered."""
        rows = rows + self.attention.merge(context_BNTD)
        return rows + self.mlp(self.mlp_norm(rows))

    def construct(self, rows: Tensor, batch: int, rotation: tuple[Tensor, ...] | None, mask: Tensor) -> Tensor:
        rows = rows + self.attention(self.attention_norm(rows), batch, rotation, mask)
        return rows + self.mlp(self.mlp_norm(rows))


class LanguageModel(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """A decoder-only language model with the call and the parameter names of contract `model`.

    Args:
        config: which model.
        seed: of the fresh weights; a weight depends on the seed and its name alone.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.max_length = config.max_position_embeddings
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        is_rotary = config.position_kind == "rotary"
        self.position_embedding = None if is_rotary else Embedding(self.max_length, config.hidden_size)
        self.rotary = RotaryPositions(config, self.max_length) if is_rotary else None
        self.attention_mask = select().AttentionMask()
        self.blocks = nn.CellList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = block_norm(config)
        self.tied_head = select().Linear()
        self.lm_head = None if config.tie_word_embeddings else Projection(config.hidden_size, config.vocab_size, False)
        parameters = named_parameters(self)
        for name, parameter in parameters.items():
            parameter.name = name
        load_weights(self, {name: initial_weight(config, name, p.shape, seed) for name, p in parameters.items()})

    def embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Rows [R, hidden] of the ids, with their positions where those are learned."""
        rows = self.embedding(input_ids)
        if self.position_embedding is not None:
            rows = rows + self.position_embedding(position_ids)
        return rows

    def rotation(self, position_ids: Tensor) -> tuple[Tensor, ...] | None:
        """What turns queries and keys, once for all layers; None where positions are learned."""
        if self.rotary is None:
            return None
        num_heads, num_key_value_heads = self.blocks[0].attention.num_local_heads()
        rotation: tuple[Tensor, ...] = self.rotary(position_ids, num_heads, num_key_value_heads)
        return rotation

    def mask(self, allowed_BTS: Tensor, batch: int) -> Tensor:
        """The attention mask, once for all layers."""
        return self.attention_mask(allowed_BTS, batch, self.blocks[0].attention.num_local_heads()[0])

    def head(self, rows: Tensor) -> Tensor:
        """Logits [R, vocab]."""
        rows = self.norm(rows)
        if self.lm_head is None:
            return self.tied_head(rows, self.embedding.weight)
        return self.lm_head(rows)

    def construct(
        self, input_ids: Tensor, position_ids: Tensor | None = None, segment_ids: Tensor | None = None
    ) -> Tensor:
        batch, length = input_ids.shape
        if length > self.max_length:
            raise ValueError(f"input_ids: rows of {length} ids, max_position_embeddings is {self.max_length}")
        if position_ids is None:
            position_ids = counted_positions(batch, length)
        rows = self.embed(input_ids, position_ids)
        rotation = self.rotation(position_ids)
        mask = self.mask(allowed_pairs(length, segment_ids), batch)
        for block in self.blocks:
            rows = block(rows, batch, rotation, mask)
        return self.head(rows).reshape(batch, length, -1)
