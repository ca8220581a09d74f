"""What a model of a given config costs: parameters, arithmetic and memory, from the config alone."""

from dataclasses import dataclass
from typing import Any

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class DescriptionConfig:
    """For which use the memory is counted."""

    seq_length: int = 0
    """Positions of a row; 0: max_position_embeddings."""
    batch_size: int = 1
    """Sequences in the cache."""
    dtype: str = "float32"
    """Type of weights, gradients and cache: `float32`, `float16`, `bfloat16`. The optimizer's state is float32."""

    def __post_init__(self) -> None:
        if self.dtype not in _BYTES:
            raise ConfigError(f"describe.dtype: expected one of {', '.join(_BYTES)}, found {self.dtype!r}")
        if self.batch_size < 1 or self.seq_length < 0:
            found = f"batch_size {self.batch_size}, seq_length {self.seq_length}"
            raise ConfigError(f"describe: expected batch_size 1 or more, seq_length 0 or more, found {found}")


def describe(config: ModelConfig, use: DescriptionConfig | None = None) -> dict[str, Any]:
    """Parameters by group, FLOPs per token with their formula, and bytes of memory, as plain JSON values.

    FLOPs follow Kaplan et al. 2020, section 2.1, with the head counted and look-ups not: a forward pass takes 2 per
    weight of a matrix and token, and 4 per layer, query width and position seen; causal attention sees half of the
    positions on average. Forward and backward together take three times that. Memory leaves out activations.
    """
    use = use or DescriptionConfig()
    length = use.seq_length or config.max_position_embeddings
    groups = parameter_counts(config)
    matrices = _matrix_weights(config)
    queries = config.num_attention_heads * config.head_dim
    attention = 2 * config.num_hidden_layers * queries * length
    forward = 2 * matrices + attention
    total = sum(groups.values())
    size = _BYTES[use.dtype]
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * length * use.batch_size
    masters = 0 if use.dtype == "float32" else 4
    return {
        "model_type": config.model_type,
        "seq_length": length,
        "batch_size": use.batch_size,
        "dtype": use.dtype,
        "parameters": {**groups, "total": total},
        "flops_per_token": {
            "forward": forward,
            "training": 3 * forward,
            "formula": "training = 3 * forward; forward = 2 * matrix weights + 2 * layers * query width * seq_length"
            f" = 2 * {matrices} + 2 * {config.num_hidden_layers} * {queries} * {length} (causal: half are seen)",
        },
        "memory_bytes": {
            "weights": total * size,
            "gradients": total * size,
            "optimizer": total * (8 + masters),
            "optimizer_formula": "AdamW: two float32 moments a parameter" + (", and a float32 copy" if masters else ""),
            "kv_cache": cache * size,
        },
    }


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Number of parameters by group; the groups add up to the model's."""
    c, layers = config, config.num_hidden_layers
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    norm = c.hidden_size * (2 if c.norm_bias else 1)
    attention = 2 * c.hidden_size * (queries + keys)
    attention += (queries + 2 * keys) * c.attention_bias + c.hidden_size * c.attention_output_bias
    widths = c.intermediate_size * (2 if c.gated_mlp else 1)
    mlp = c.hidden_size * (widths + c.intermediate_size) + (widths + c.hidden_size) * c.mlp_bias
    return {
        "embedding": c.vocab_size * c.hidden_size,
        "position_embedding": c.max_position_embeddings * c.hidden_size if c.position_kind == "learned" else 0,
        "attention": layers * attention,
        "mlp": layers * mlp,
        "norms": layers * (2 * norm + 2 * c.head_dim * c.qk_norm) + norm,
        "lm_head": 0 if c.tie_word_embeddings else c.vocab_size * c.hidden_size,
    }


def description_table(description: dict[str, Any]) -> str:
    """The description as lines of text for people."""
    parameters, flops, memory = (description[k] for k in ("parameters", "flops_per_token", "memory_bytes"))
    context = f"seq_length {description['seq_length']}, {description['dtype']}"
    lines = [f"{'parameters':<24}{'number':>18}"]
    lines += [f"  {name:<22}{number:>18,}" for name, number in parameters.items()]
    lines += [f"{'FLOPs per token':<24}{'number':>18}   ({context})"]
    lines += [f"  {name:<22}{flops[name]:>18,}" for name in ("forward", "training")]
    lines += [f"  {flops['formula']}"]
    lines += [f"{'memory':<24}{'MiB':>18}   ({context}, cache for {description['batch_size']} sequences)"]
    lines += [
        f"  {name:<22}{memory[name] / 2**20:>18,.1f}" for name in ("weights", "gradients", "optimizer", "kv_cache")
    ]
    lines += [f"  {memory['optimizer_formula']}"]
    return "\n".join(lines)


def _matrix_weights(config: ModelConfig) -> int:
    """Weights that multiply every token: all matrices of the blocks, and the head."""
    c, queries = config, config.num_attention_heads * config.head_dim
    attention = 2 * c.hidden_size * (queries + c.num_key_value_heads * c.head_dim)
    mlp = c.hidden_size * c.intermediate_size * (3 if c.gated_mlp else 2)
    return c.num_hidden_layers * (attention + mlp) + c.vocab_size * c.hidden_size
