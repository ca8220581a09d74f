"""Names and shapes of a model's parameters, from the config alone: contract `model`, without making the model."""

from collections.abc import Iterator

from ms_gptmodel.config import ModelConfig

Shape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every trainable parameter by contract name, embeddings first, then block by block, then the head."""
    c = config
    shapes: dict[str, Shape] = {"embedding.weight": (c.padded_vocab_size, c.embedding_size)}
    if c.embedding_size != c.hidden_size:
        shapes["embedding_projection.weight"] = (c.hidden_size, c.embedding_size)
    if c.position_kind == "learned":
        shapes["position_embedding.weight"] = (c.max_position_embeddings + c.position_offset, c.hidden_size)
    if c.type_vocab_size:
        shapes["token_type_embedding.weight"] = (c.type_vocab_size, c.hidden_size)
    if c.embedding_norm:
        shapes.update(_norm(c, "embedding_norm"))
    for number in range(c.num_hidden_layers):
        shapes.update({f"blocks.{number}.{name}": shape for name, shape in _block(c, number)})
    if c.final_norm:
        shapes.update(_norm(c, "norm"))
    if c.embedding_size != c.hidden_size:
        shapes["head_projection.weight"] = (c.embedding_size, c.hidden_size)
    if c.lm_head_transform:
        shapes.update(_linear("lm_head_transform.dense", c.hidden_size, c.hidden_size, True))
        shapes.update(_norm(c, "lm_head_transform.norm"))
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.padded_vocab_size, c.embedding_size)
    if c.lm_head_bias:
        shapes["lm_head.bias"] = (c.padded_vocab_size,)
    return shapes


def _block(c: ModelConfig, number: int) -> Iterator[tuple[str, Shape]]:
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield from _norm(c, "attention_norm")
    for part, width in (("query", queries), ("key", keys), ("value", keys)):
        yield from _linear(f"attention.{part}", width, c.hidden_size, c.attention_bias)
    yield from _linear("attention.output", c.hidden_size, queries, c.attention_output_bias)
    if c.qk_norm:
        yield "attention.query_norm.weight", (c.head_dim,)
        yield "attention.key_norm.weight", (c.head_dim,)
    if not c.parallel_norm_is_shared:
        yield from _norm(c, "mlp_norm")
    if c.norm_placement == "sandwich":
        yield from _norm(c, "attention_post_norm")
        yield from _norm(c, "mlp_post_norm")
    if not c.has_experts[number]:
        yield from _feed_forward(c, "mlp", c.intermediate_size, c.mlp_bias)
        return
    yield "mlp.router.weight", (c.num_experts, c.hidden_size)
    for name, shape in _feed_forward(c, "mlp.experts", c.moe_intermediate_size, False):
        yield name, (c.num_experts, *shape)
    if c.shared_expert_intermediate_size:
        yield from _feed_forward(c, "mlp.shared_expert", c.shared_expert_intermediate_size, False)
    if c.shared_expert_is_gated:
        yield "mlp.shared_expert_gate.weight", (1, c.hidden_size)


def _feed_forward(c: ModelConfig, name: str, inner: int, has_bias: bool) -> Iterator[tuple[str, Shape]]:
    for part in ("gate", "up") if c.gated_mlp else ("up",):
        yield from _linear(f"{name}.{part}", inner, c.hidden_size, has_bias)
    yield from _linear(f"{name}.down", c.hidden_size, inner, has_bias)


def _norm(c: ModelConfig, name: str) -> list[tuple[str, Shape]]:
    bias: list[tuple[str, Shape]] = [(f"{name}.bias", (c.hidden_size,))] if c.norm_bias else []
    return [(f"{name}.weight", (c.hidden_size,)), *bias]


def _linear(name: str, out: int, into: int, has_bias: bool) -> list[tuple[str, Shape]]:
    bias: list[tuple[str, Shape]] = [(f"{name}.bias", (out,))] if has_bias else []
    return [(f"{name}.weight", (out, into)), *bias]
