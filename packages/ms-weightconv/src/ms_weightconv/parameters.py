"""Contract `model`, version 1, as data: every parameter's name and shape; `contract` has the config's keys."""

from collections.abc import Iterator

from ms_weightconv.contract import Config

Shape = tuple[int, ...]


def parameter_shapes(config: Config) -> dict[str, Shape]:
    """Every parameter of the network that a config describes, with its shape, in the contract's order."""
    hidden, width, vocab = config["hidden_size"], config["embedding_size"], config["padded_vocab_size"]
    shapes: dict[str, Shape] = {"embedding.weight": (vocab, width)}
    if config["position_kind"] == "learned":
        rows = config["max_position_embeddings"] + config["position_offset"]
        shapes["position_embedding.weight"] = (rows, hidden)
    if config["type_vocab_size"]:
        shapes["token_type_embedding.weight"] = (config["type_vocab_size"], hidden)
    if width != hidden:
        shapes["embedding_projection.weight"] = (hidden, width)
        shapes["head_projection.weight"] = (width, hidden)
    if config["embedding_norm"]:
        shapes |= _norm("embedding_norm", config)
    for layer in range(config["num_hidden_layers"]):
        shapes |= _block(f"blocks.{layer}", layer, config)
    if config["final_norm"]:
        shapes |= _norm("norm", config)
    if config["lm_head_transform"]:
        shapes |= _linear("lm_head_transform.dense", (hidden, hidden), True)
        shapes |= _norm("lm_head_transform.norm", config)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, width)
    if config["lm_head_bias"]:
        shapes["lm_head.bias"] = (vocab,)
    return shapes


def part_width(config: Config, part: str) -> int:
    """Output width of a projection that foreign layouts fuse with others: query, key, value, gate or up."""
    if part in ("gate", "up"):
        return int(config["intermediate_size"])
    heads = "num_attention_heads" if part == "query" else "num_key_value_heads"
    return int(config[heads] * config["head_dim"])


def has_experts(config: Config, layer: int) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts."""
    return bool(config["num_experts"]) and layer not in config["mlp_only_layers"]


def _block(block: str, layer: int, config: Config) -> dict[str, Shape]:
    hidden, is_sandwich = config["hidden_size"], config["norm_placement"] == "sandwich"
    shapes = _norm(f"{block}.attention_norm", config)
    for part in ("query", "key", "value"):
        width = part_width(config, part)
        shapes |= _linear(f"{block}.attention.{part}", (width, hidden), config["attention_bias"])
    if config["qk_norm"]:
        shapes[f"{block}.attention.query_norm.weight"] = (config["head_dim"],)
        shapes[f"{block}.attention.key_norm.weight"] = (config["head_dim"],)
    width = part_width(config, "query")
    shapes |= _linear(f"{block}.attention.output", (hidden, width), config["attention_output_bias"])
    if is_sandwich:
        shapes |= _norm(f"{block}.attention_post_norm", config)
    if not config["parallel_norm_is_shared"]:
        shapes |= _norm(f"{block}.mlp_norm", config)
    shapes |= dict(_feed_forward(f"{block}.mlp", layer, config))
    if is_sandwich:
        shapes |= _norm(f"{block}.mlp_post_norm", config)
    return shapes


def _feed_forward(mlp: str, layer: int, config: Config) -> Iterator[tuple[str, Shape]]:
    hidden, parts = config["hidden_size"], ("gate", "up", "down") if config["gated_mlp"] else ("up", "down")

    def shape(part: str, inner: int) -> Shape:
        return (hidden, inner) if part == "down" else (inner, hidden)

    if not has_experts(config, layer):
        for part in parts:
            yield from _linear(f"{mlp}.{part}", shape(part, config["intermediate_size"]), config["mlp_bias"]).items()
        return
    yield f"{mlp}.router.weight", (config["num_experts"], hidden)
    for part in parts:
        yield f"{mlp}.experts.{part}.weight", (config["num_experts"], *shape(part, config["moe_intermediate_size"]))
    if config["shared_expert_intermediate_size"]:
        for part in parts:
            yield f"{mlp}.shared_expert.{part}.weight", shape(part, config["shared_expert_intermediate_size"])
        if config["shared_expert_is_gated"]:
            yield f"{mlp}.shared_expert_gate.weight", (1, hidden)


def _norm(name: str, config: Config) -> dict[str, Shape]:
    has_bias = config["norm_kind"] == "layer_norm" and config["norm_bias"]
    return _linear(name, (config["hidden_size"],), has_bias)


def _linear(name: str, shape: Shape, has_bias: bool) -> dict[str, Shape]:
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if has_bias else {})
