"""What a model of a given config costs: parameters, arithmetic and memory, from the config alone."""

import math
from dataclasses import dataclass
from typing import Any

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError
from ms_gptmodel.shapes import parameter_shapes

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class DescriptionConfig:
    """For which use the memory is counted."""

    seq_length: int = 0
    """Positions of a row; 0: max_position_embeddings."""
    batch_size: int = 1
    """Sequences in a batch and in the cache."""
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
    weight of a matrix and token, and 4 per layer, query width and position seen: half of the positions on average when
    causal, all of them when not, never more than the window. Of the experts, the chosen ones count. Forward and
    backward together take three times that. Activations are an estimate, see `activation_numbers`.
    """
    use = use or DescriptionConfig()
    length = use.seq_length or config.max_position_embeddings
    groups = parameter_counts(config)
    matrices = _matrix_weights(config)
    queries = config.num_attention_heads * config.head_dim
    seen = round(sum(_positions_seen(config, length, slides) for slides in config.slides))
    forward = 2 * matrices + 4 * queries * seen
    total = sum(groups.values())
    size = _BYTES[use.dtype]
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * length * use.batch_size
    masters = 0 if use.dtype == "float32" else 4
    kept, kept_recomputed = activation_numbers(config, length)
    tokens = length * use.batch_size
    return {
        "model_type": config.model_type,
        "seq_length": length,
        "batch_size": use.batch_size,
        "dtype": use.dtype,
        "parameters": {**groups, "total": total, "active": active_parameters(config)},
        "flops_per_token": {
            "forward": forward,
            "training": 3 * forward,
            "formula": "training = 3 * forward; forward = 2 * matrix weights + 4 * query width * positions seen in all"
            f" layers = 2 * {matrices} + 4 * {queries} * {seen}",
        },
        "memory_bytes": {
            "weights": total * size,
            "gradients": total * size,
            "optimizer": total * (8 + masters),
            "optimizer_formula": "AdamW: two float32 moments a parameter" + (", and a float32 copy" if masters else ""),
            "activations": kept * tokens * size,
            "activations_recomputed": kept_recomputed * tokens * size,
            "activations_formula": f"{kept} numbers a token kept for the backward pass, {kept_recomputed} with every"
            f" block recomputed, times {tokens} tokens (estimate, attention matrices included)",
            "kv_cache": cache * size if config.is_causal else 0,
        },
    }


def activation_numbers(config: ModelConfig, length: int) -> tuple[int, int]:
    """Estimate of the numbers a token that a backward pass needs: all of them, and with every block recomputed.

    Each block keeps the inputs of its norms, matrices, activation and attention, and the attention's probabilities;
    recomputed ones keep their input only, and the one at work all of its own. The head keeps logits and their
    logarithms.
    """
    c = config
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    inner_tensors = 4 if c.gated_mlp else 3
    blocks = []
    for is_sparse in c.has_experts:
        inner = c.moe_intermediate_size * c.num_experts_per_tok + c.shared_expert_intermediate_size
        inner = inner if is_sparse else c.intermediate_size
        attention = 3 * queries + 3 * keys + c.num_attention_heads * length
        blocks.append(4 * c.hidden_size + attention + inner_tensors * inner)
    ends = 2 * c.hidden_size + 2 * c.vocab_size
    return sum(blocks) + ends, c.num_hidden_layers * c.hidden_size + max(blocks) + ends


def _positions_seen(config: ModelConfig, length: int, slides: bool) -> float:
    """Positions that a token sees on average."""
    if not config.is_causal:
        return length
    window = min(config.sliding_window or length, length) if slides else length
    return window * (1 - window / (2 * length))


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Number of parameters by group; the groups add up to the model's."""
    groups = dict.fromkeys(("embedding", "position_embedding", "attention", "mlp", "experts", "norms", "lm_head"), 0)
    for name, shape in parameter_shapes(config).items():
        groups[_group(name)] += math.prod(shape)
    return groups


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token goes through: of the experts, the chosen ones only."""
    total = 0
    for name, shape in parameter_shapes(config).items():
        chosen = config.num_experts_per_tok if ".experts." in name else 1
        total += math.prod(shape) * chosen // (config.num_experts if ".experts." in name else 1)
    return total


def _group(name: str) -> str:
    if "norm." in name:
        return "norms"
    if name.startswith(("embedding", "token_type")):
        return "embedding"
    if name.startswith("position_embedding"):
        return "position_embedding"
    if ".attention." in name:
        return "attention"
    if ".experts." in name or ".router." in name or ".shared_expert" in name:
        return "experts"
    return "mlp" if ".mlp." in name else "lm_head"


def description_table(description: dict[str, Any]) -> str:
    """The description as lines of text for people."""
    parameters, flops, memory = (description[k] for k in ("parameters", "flops_per_token", "memory_bytes"))
    context = f"seq_length {description['seq_length']}, {description['dtype']}"
    lines = [f"{'parameters':<24}{'number':>18}"]
    lines += [f"  {name:<22}{number:>18,}" for name, number in parameters.items()]
    lines += [f"{'FLOPs per token':<24}{'number':>18}   ({context})"]
    lines += [f"  {name:<22}{flops[name]:>18,}" for name in ("forward", "training")]
    lines += [f"  {flops['formula']}"]
    lines += [f"{'memory':<24}{'MiB':>18}   ({context}, {description['batch_size']} sequences)"]
    lines += [
        f"  {name:<22}{memory[name] / 2**20:>18,.1f}"
        for name in ("weights", "gradients", "optimizer", "activations", "activations_recomputed", "kv_cache")
    ]
    lines += [f"  {memory[f'{name}_formula']}" for name in ("optimizer", "activations")]
    return "\n".join(lines)


def _matrix_weights(config: ModelConfig) -> int:
    """Weights of matrices that a token is multiplied by: those of the blocks, the chosen experts', and the head's."""
    total = config.padded_vocab_size * config.embedding_size if config.tie_word_embeddings else 0
    for name, shape in parameter_shapes(config).items():
        is_table = name in ("embedding.weight", "position_embedding.weight", "token_type_embedding.weight")
        if len(shape) < 2 or is_table:
            continue
        share = config.num_experts_per_tok / config.num_experts if ".experts." in name else 1
        total += round(math.prod(shape) * share)
    return total
