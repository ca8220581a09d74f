"""Lines that many families' tables share."""

from typing import Any

from ms_weightconv.family import Field, TheirConfig
from ms_weightconv.rules import Rule

BLOCK = "blocks.{layer}"
QUERY_KEY_VALUE = ("query", "key", "value")
ACTIVATIONS = (
    ("gelu_new", "gelu_new"),
    ("gelu_pytorch_tanh", "gelu_new"),
    ("silu", "silu"),
    ("swish", "silu"),
    ("gelu_python", "gelu"),
)
COMMON_FIELDS = (
    Field("vocab_size", "vocab_size"),
    Field("initializer_range", "initializer_range", 0.02),
    Field("tokenizer_fingerprint", "tokenizer_fingerprint", None, is_written_when_none=False),
)
SIZE_FIELDS = (
    Field("hidden_size", "hidden_size"),
    Field("num_hidden_layers", "num_hidden_layers"),
    Field("num_attention_heads", "num_attention_heads"),
    Field("intermediate_size", "intermediate_size"),
    Field("max_position_embeddings", "max_position_embeddings"),
)
LAYER_NORMS = {"norm_kind": "layer_norm", "norm_bias": True, "gated_mlp": False}
ALL_BIASES = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}


def token_ids(bos: int | None, eos: int | None, pad: int | None = None) -> tuple[Field, ...]:
    """The three ids with transformers' defaults."""
    return tuple(
        Field(f"{role}_token_id", f"{role}_token_id", number)
        for role, number in (("bos", bos), ("eos", eos), ("pad", pad))
    )


def dropout(attention: str = "attention_dropout", *, residual: str = "", embedding: str = "") -> tuple[Field, ...]:
    """The rates under their names in a family's config; one name for two rates where both are named so."""
    named: dict[str, tuple[str, ...]] = {}
    for theirs, ours in ((attention, "attention"), (residual, "residual"), (embedding, "embedding")):
        if theirs:
            named[theirs] = (*named.get(theirs, ()), f"{ours}_dropout")
    return tuple(Field(theirs, ours, 0.0, when_null=lambda _: 0.0) for theirs, ours in named.items())


def heads(theirs: TheirConfig) -> Any:
    """What a missing number of key/value heads means."""
    return theirs["num_attention_heads"]


def linear(theirs: str, ours: str, *, bias: str | None = None) -> tuple[Rule, ...]:
    """A projection or norm that is only renamed: weight, and bias under a condition ("" for always)."""
    weight = Rule(f"{theirs}.weight", f"{ours}.weight")
    if bias is None:
        return (weight,)
    return weight, Rule(f"{theirs}.bias", f"{ours}.bias", when=bias or None)
