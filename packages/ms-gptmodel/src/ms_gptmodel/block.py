# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""One layer of the model, in the four ways in which norms and branches are put together.

Shapes: R rows (B times T), B batch, N query heads, T positions, D head_dim.
"""

from mindspore import Tensor, nn

from ms_gptmodel.attention import Attention
from ms_gptmodel.config import ModelConfig
from ms_gptmodel.dropout import Dropout, pair_of
from ms_gptmodel.feed_forward import FeedForward
from ms_gptmodel.moe import MoeFeedForward
from ms_gptmodel.norms import block_norm
from ms_gptmodel.positions import Rotation


class Block(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x + attention(norm(x)), then x + mlp(norm(x)): norms before the branches (GPT-2, Llama)."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.slides = config.slides[number]
        self.attention_norm = block_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = block_norm(config)
        self.mlp = MoeFeedForward(config) if config.has_experts[number] else FeedForward(config)
        has_loss = config.router_aux_loss_coef > 0 or config.router_z_loss_coef > 0
        self.dropout = Dropout(config.residual_dropout) if config.residual_dropout > 0 else None
        self.first_place = 1 + 3 * number  # of this block's three masks; place 0 is the embedding's
        self.routes = config.has_experts[number] and has_loss

    def heads(self, rows: Tensor, batch: int, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """This layer's queries, keys and values."""
        return self.attention.heads(self.attention_norm(rows), batch, rotation)

    def add(self, rows: Tensor, context_BNTD: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The rows after this layer, given what its attention gathered; and the router's logits if they are wanted."""
        rows = rows + self.branch(context_BNTD, keys)
        added, logits = self.feed(self.mlp_norm(rows), keys)
        return rows + added, logits

    def branch(self, context_BNTD: Tensor, keys: Tensor | None) -> Tensor:
        """What the attention adds."""
        return self._dropped(self.attention.merge(context_BNTD), keys, 1)

    def feed(self, rows: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the feed-forward layer makes of its input, and the router's logits if they are wanted."""
        if self.routes:
            added, logits = self.mlp.routed(rows)
            return self._dropped(added, keys, 2), logits
        return self._dropped(self.mlp(rows), keys, 2), None

    def construct(
        self, rows: Tensor, batch: int, rotation: Rotation | None, mask: Tensor, keys: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        query, key, value = self.heads(rows, batch, rotation)
        pair = None if keys is None else pair_of(keys, self.first_place)
        context_BNTD = self.attention.attend(query, key, value, mask, pair)
        rows, logits = self.add(rows, context_BNTD, keys)
        return (rows, logits) if self.routes else rows

    def _dropped(self, added: Tensor, keys: Tensor | None, place: int) -> Tensor:
        if self.dropout is None or keys is None:
            return added
        factor, addend = pair_of(keys, self.first_place + place)
        return self.dropout(added, factor, addend)


class PostNormBlock(Block):
    """norm(x + attention(x)), then norm(x + mlp(x)): norms after the sums (Vaswani et al. 2017; BERT)."""

    def heads(self, rows: Tensor, batch: int, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.heads(rows, batch, rotation)

    def add(self, rows: Tensor, context_BNTD: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        rows = self.attention_norm(rows + self.branch(context_BNTD, keys))
        added, logits = self.feed(rows, keys)
        return self.mlp_norm(rows + added), logits


class SandwichBlock(Block):
    """x + post_norm(f(norm(x))) for both branches (Gemma 2 and 3)."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__(config, number)
        self.attention_post_norm = block_norm(config)
        self.mlp_post_norm = block_norm(config)

    def add(self, rows: Tensor, context_BNTD: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        rows = rows + self.attention_post_norm(self.branch(context_BNTD, keys))
        added, logits = self.feed(self.mlp_norm(rows), keys)
        return rows + self.mlp_post_norm(added), logits


class ParallelBlock(Block):
    """x + attention(norm(x)) + mlp(norm(x)), with one norm for both or one each (GPT-J, GPT-NeoX)."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__(config, number)
        if config.parallel_norm_is_shared:
            del self.mlp_norm
            self.mlp_norm = None

    def add(self, rows: Tensor, context_BNTD: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        normed = self.attention_norm(rows) if self.mlp_norm is None else self.mlp_norm(rows)
        added, logits = self.feed(normed, keys)
        return rows + self.branch(context_BNTD, keys) + added, logits


def make_block(config: ModelConfig, number: int) -> Block:
    """Layer `number` as the config puts it together."""
    if config.parallel_residual:
        return ParallelBlock(config, number)
    kinds = {"pre": Block, "post": PostNormBlock, "sandwich": SandwichBlock}
    return kinds[config.norm_placement](config, number)
