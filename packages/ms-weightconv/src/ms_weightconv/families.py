"""The families: one table each, for the weights and for the config."""

from collections.abc import Mapping
from typing import Any

from ms_weightconv.errors import ConfigError
from ms_weightconv.mapping import Family, Field, Limit
from ms_weightconv.rules import Drop, Rule, Split, Tie, Transpose

_BLOCK = "blocks.{layer}"
_QUERY_KEY_VALUE = ("query", "key", "value")
_ACTIVATIONS = (("gelu_new", "gelu_new"), ("gelu_pytorch_tanh", "gelu_new"), ("silu", "silu"), ("swish", "silu"))
_NO_BIAS = {"attention_bias": False, "attention_output_bias": False, "mlp_bias": False}
_INV_FREQ = Drop("model.layers.{layer}.self_attn.rotary_emb.inv_freq", "computed from rope_theta")

_COMMON_FIELDS = (
    Field("vocab_size", "vocab_size"),
    Field("initializer_range", "initializer_range", 0.02),
    Field("pad_token_id", "pad_token_id", None),
    Field("tokenizer_fingerprint", "tokenizer_fingerprint", None, is_written_when_none=False),
)
_ROTARY_FIELDS = (
    *_COMMON_FIELDS,
    Field("hidden_size", "hidden_size"),
    Field("num_hidden_layers", "num_hidden_layers"),
    Field("num_attention_heads", "num_attention_heads"),
    Field("intermediate_size", "intermediate_size"),
    Field("max_position_embeddings", "max_position_embeddings"),
    Field("rms_norm_eps", "rms_norm_eps", 1e-6),
    Field("hidden_act", "hidden_act", "silu", spellings=_ACTIVATIONS),
    Field("tie_word_embeddings", "tie_word_embeddings", False),
)
_ROTARY_SWITCHES = {"norm_kind": "rms_norm", "position_kind": "rotary", "gated_mlp": True}


def _rotary_rules(*more: Rule) -> tuple[Rule | Tie | Drop, ...]:
    """Llama's names, which Mistral and Qwen share."""
    theirs, ours = "model.layers.{layer}", _BLOCK
    return (
        Rule("model.embed_tokens.weight", "embedding.weight"),
        Rule(f"{theirs}.input_layernorm.weight", f"{ours}.attention_norm.weight"),
        Rule(f"{theirs}.self_attn.q_proj.weight", f"{ours}.attention.query.weight"),
        Rule(f"{theirs}.self_attn.k_proj.weight", f"{ours}.attention.key.weight"),
        Rule(f"{theirs}.self_attn.v_proj.weight", f"{ours}.attention.value.weight"),
        Rule(f"{theirs}.self_attn.o_proj.weight", f"{ours}.attention.output.weight"),
        Rule(f"{theirs}.post_attention_layernorm.weight", f"{ours}.mlp_norm.weight"),
        Rule(f"{theirs}.mlp.gate_proj.weight", f"{ours}.mlp.gate.weight"),
        Rule(f"{theirs}.mlp.up_proj.weight", f"{ours}.mlp.up.weight"),
        Rule(f"{theirs}.mlp.down_proj.weight", f"{ours}.mlp.down.weight"),
        *more,
        Rule("model.norm.weight", "norm.weight"),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        _INV_FREQ,
    )


_THEIR_ATTENTION, _OUR_ATTENTION = "model.layers.{layer}.self_attn", f"{_BLOCK}.attention"
_ATTENTION_BIASES = (
    Rule(f"{_THEIR_ATTENTION}.q_proj.bias", f"{_OUR_ATTENTION}.query.bias", when="attention_bias"),
    Rule(f"{_THEIR_ATTENTION}.k_proj.bias", f"{_OUR_ATTENTION}.key.bias", when="attention_bias"),
    Rule(f"{_THEIR_ATTENTION}.v_proj.bias", f"{_OUR_ATTENTION}.value.bias", when="attention_bias"),
)
_OUTPUT_BIAS = Rule(f"{_THEIR_ATTENTION}.o_proj.bias", f"{_OUR_ATTENTION}.output.bias", when="attention_output_bias")
_MLP_BIASES = tuple(
    Rule(f"model.layers.{{layer}}.mlp.{part}_proj.bias", f"{_BLOCK}.mlp.{part}.bias", when="mlp_bias")
    for part in ("gate", "up", "down")
)
_QK_NORMS = (
    Rule(f"{_THEIR_ATTENTION}.q_norm.weight", f"{_OUR_ATTENTION}.query_norm.weight"),
    Rule(f"{_THEIR_ATTENTION}.k_norm.weight", f"{_OUR_ATTENTION}.key_norm.weight"),
)


def _heads(theirs: Mapping[str, Any]) -> Any:
    return theirs["num_attention_heads"]


def _qwen_window(theirs: Mapping[str, Any]) -> Any:
    return theirs.get("sliding_window", 4096) if theirs.get("use_sliding_window") else None


def _token_ids(bos: int | None, eos: int | None) -> tuple[Field, ...]:
    return Field("bos_token_id", "bos_token_id", bos), Field("eos_token_id", "eos_token_id", eos)


_GPT2_BLOCK = "transformer.h.{layer}"
_GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    rules=(
        Rule("transformer.wte.weight", "embedding.weight"),
        Rule("transformer.wpe.weight", "position_embedding.weight"),
        Rule(f"{_GPT2_BLOCK}.ln_1.weight", f"{_BLOCK}.attention_norm.weight"),
        Rule(f"{_GPT2_BLOCK}.ln_1.bias", f"{_BLOCK}.attention_norm.bias"),
        Rule(
            f"{_GPT2_BLOCK}.attn.c_attn.weight",
            tuple(f"{_BLOCK}.attention.{part}.weight" for part in _QUERY_KEY_VALUE),
            (Transpose(), Split(*_QUERY_KEY_VALUE)),
        ),
        Rule(
            f"{_GPT2_BLOCK}.attn.c_attn.bias",
            tuple(f"{_BLOCK}.attention.{part}.bias" for part in _QUERY_KEY_VALUE),
            (Split(*_QUERY_KEY_VALUE),),
        ),
        Rule(f"{_GPT2_BLOCK}.attn.c_proj.weight", f"{_BLOCK}.attention.output.weight", (Transpose(),)),
        Rule(f"{_GPT2_BLOCK}.attn.c_proj.bias", f"{_BLOCK}.attention.output.bias"),
        Rule(f"{_GPT2_BLOCK}.ln_2.weight", f"{_BLOCK}.mlp_norm.weight"),
        Rule(f"{_GPT2_BLOCK}.ln_2.bias", f"{_BLOCK}.mlp_norm.bias"),
        Rule(f"{_GPT2_BLOCK}.mlp.c_fc.weight", f"{_BLOCK}.mlp.up.weight", (Transpose(),)),
        Rule(f"{_GPT2_BLOCK}.mlp.c_fc.bias", f"{_BLOCK}.mlp.up.bias"),
        Rule(f"{_GPT2_BLOCK}.mlp.c_proj.weight", f"{_BLOCK}.mlp.down.weight", (Transpose(),)),
        Rule(f"{_GPT2_BLOCK}.mlp.c_proj.bias", f"{_BLOCK}.mlp.down.bias"),
        Rule("transformer.ln_f.weight", "norm.weight"),
        Rule("transformer.ln_f.bias", "norm.bias"),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Drop(f"{_GPT2_BLOCK}.attn.bias", "a causal mask, not a weight"),
        Drop(f"{_GPT2_BLOCK}.attn.masked_bias", "a constant of the causal mask"),
    ),
    fields=(
        *_COMMON_FIELDS,
        *_token_ids(50256, 50256),
        Field("n_embd", "hidden_size"),
        Field("n_layer", "num_hidden_layers"),
        Field("n_head", "num_attention_heads"),
        Field("n_positions", "max_position_embeddings"),
        Field("n_inner", "intermediate_size", None, when_null=lambda theirs: 4 * theirs["n_embd"]),
        Field("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        Field("activation_function", "hidden_act", "gelu_new", spellings=_ACTIVATIONS),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    switches={
        "norm_kind": "layer_norm", "norm_bias": True, "position_kind": "learned", "gated_mlp": False,
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "qk_norm": False,
        "num_key_value_heads": lambda config: config["num_attention_heads"],
        "head_dim": lambda config: config["hidden_size"] // config["num_attention_heads"],
    },
    limits=(
        Limit("scale_attn_weights", (True,), "attention scores are not divided by the root of head_dim"),
        Limit("scale_attn_by_inverse_layer_idx", (False,), "attention scores are divided by the layer's number"),
    ),
)  # fmt: skip

_LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    rules=_rotary_rules(*_ATTENTION_BIASES, _OUTPUT_BIAS, *_MLP_BIASES),
    fields=(
        *_ROTARY_FIELDS,
        *_token_ids(1, 2),
        Field("num_key_value_heads", "num_key_value_heads", None, when_null=_heads),
        Field("head_dim", "head_dim", None),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Field("mlp_bias", "mlp_bias", False),
    ),
    switches={**_ROTARY_SWITCHES, "qk_norm": False},
)

_MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    prefix="model.",
    rules=_rotary_rules(),
    fields=(
        *_ROTARY_FIELDS,
        *_token_ids(1, 2),
        Field("num_key_value_heads", "num_key_value_heads", 8, when_null=_heads),
        Field("head_dim", "head_dim", None),
    ),
    switches={**_ROTARY_SWITCHES, **_NO_BIAS, "qk_norm": False},
    fixed={"sliding_window": None},
    window=lambda theirs: theirs.get("sliding_window", 4096),
)

_QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    prefix="model.",
    rules=_rotary_rules(*_ATTENTION_BIASES),
    fields=(
        *_ROTARY_FIELDS,
        *_token_ids(None, None),
        Field("num_key_value_heads", "num_key_value_heads", 32, when_null=_heads),
        Field("head_dim", "head_dim", None),
    ),
    switches={**_ROTARY_SWITCHES, **_NO_BIAS, "attention_bias": True, "qk_norm": False},
    fixed={"use_sliding_window": False},
    window=_qwen_window,
)

_QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    prefix="model.",
    rules=_rotary_rules(*_ATTENTION_BIASES, _OUTPUT_BIAS, *_QK_NORMS),
    fields=(
        *_ROTARY_FIELDS,
        *_token_ids(None, None),
        Field("num_key_value_heads", "num_key_value_heads", 32, when_null=_heads),
        Field("head_dim", "head_dim", 128),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
    ),
    switches={**_ROTARY_SWITCHES, "mlp_bias": False, "qk_norm": True},
    fixed={"use_sliding_window": False},
    window=_qwen_window,
)

FAMILIES = {family.name: family for family in (_GPT2, _LLAMA, _MISTRAL, _QWEN2, _QWEN3)}


def find_family(model_type: Any, asked: str | None, what: str) -> Family:
    """The family of a Hugging Face `model_type`, or the one asked for.

    Raises:
        ConfigError: unknown, or the two are different known families.
    """
    name = model_type if asked is None else asked
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(f"{what}: family {name!r} is not known; known: {', '.join(FAMILIES)}")
    if asked is not None and model_type in FAMILIES and model_type != asked:
        raise ConfigError(f"{what}: model_type is {model_type!r}, but family {asked!r} was asked for")
    return FAMILIES[name]
