"""What must hold of a config: ranges of single keys, and keys that would contradict each other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_type_hints

from ms_gptmodel.frequencies import scaling_fault

if TYPE_CHECKING:
    from ms_gptmodel.config import ModelConfig

Rule = tuple[str, bool, str]
"""A key, whether its value will do, and what would."""

CHOICES = {
    "norm_kind": ("rms_norm", "layer_norm"),
    "norm_placement": ("pre", "post", "sandwich"),
    "position_kind": ("rotary", "learned", "alibi", "none"),
    "hidden_act": ("silu", "gelu", "gelu_new", "relu"),
}
LAYER_TYPES = ("full_attention", "sliding_attention")
_RATES = ("embedding_dropout", "residual_dropout", "attention_dropout")
_COEFFICIENTS = ("router_aux_loss_coef", "router_z_loss_coef")
_COUNTS = ("type_vocab_size", "position_offset", "num_experts", "shared_expert_intermediate_size", "dropout_seed")
_EXPERT_KEYS = {
    "mlp_only_layers": (),
    "shared_expert_intermediate_size": 0,
    "router_aux_loss_coef": 0.0,
    "router_z_loss_coef": 0.0,
}


def rules(c: "ModelConfig") -> Iterator[Rule]:
    """All rules in order; later ones may count on earlier ones to hold."""
    yield from _ranges(c)
    yield from _attention(c)
    yield from _positions(c)
    yield from _norms_and_heads(c)
    yield from _experts(c)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(c, name)
        ids = value if isinstance(value, tuple) else () if value is None else (value,)
        fits = all(type(i) is int and 0 <= i < c.vocab_size for i in ids) and len(set(ids)) == len(ids)
        yield name, fits and value != (), f"different ids from 0 to {c.vocab_size - 1}"


def _ranges(c: "ModelConfig") -> Iterator[Rule]:
    for name, kind in get_type_hints(type(c)).items():
        value: Any = getattr(c, name)
        if name in _RATES:
            yield name, 0 <= value < 1, "0 or more and below 1"
        elif name in _COEFFICIENTS:
            yield name, 0 <= value < float("inf"), "0 or more"
        elif name in _COUNTS:
            yield name, value >= 0, "0 or more"
        elif kind is int:
            yield name, value >= 1, "1 or more"
        elif isinstance(value, float) or (isinstance(value, int) and name == "sliding_window"):
            yield name, 0 < value < float("inf"), "a positive number"
    for name, choices in CHOICES.items():
        yield name, getattr(c, name) in choices, f"one of {', '.join(choices)}"
    yield "dropout_seed", c.dropout_seed < 2**63, "below 2**63"


def _attention(c: "ModelConfig") -> Iterator[Rule]:
    grouped = c.num_attention_heads % c.num_key_value_heads == 0
    yield "num_key_value_heads", grouped, f"a divisor of num_attention_heads {c.num_attention_heads}"
    if c.layer_types is not None:
        expected = f"null or a list of {c.num_hidden_layers}, each one of {', '.join(LAYER_TYPES)}"
        fits = len(c.layer_types) == c.num_hidden_layers and all(kind in LAYER_TYPES for kind in c.layer_types)
        yield "layer_types", fits, expected
        slides = "sliding_attention" in c.layer_types
        yield "sliding_window", slides == (c.sliding_window is not None), "a window where layer_types slide, else null"
    yield "sliding_window", c.sliding_window is None or c.is_causal, "null where is_causal is false"


def _positions(c: "ModelConfig") -> Iterator[Rule]:
    is_rotary = c.position_kind == "rotary"
    if is_rotary:
        yield "head_dim", c.partial_rotary_factor < 1 or c.head_dim % 2 == 0, "an even number for rotary"
        even = c.rotary_dim % 2 == 0 and 2 <= c.rotary_dim <= c.head_dim
        yield "partial_rotary_factor", even, f"a share of head_dim {c.head_dim} that is an even number, 2 or more"
    yield "partial_rotary_factor", is_rotary or c.partial_rotary_factor == 1, "1.0 without rotary"
    yield "rope_interleaved", is_rotary or not c.rope_interleaved, "false without rotary"
    yield "rope_scaling", is_rotary or c.rope_scaling is None, "null without rotary"
    if c.rope_scaling is not None:
        fault = scaling_fault(c.rope_scaling, c.rotary_dim)
        yield "rope_scaling", fault is None, str(fault)
    slides = is_rotary and any(c.slides)
    yield "rope_local_base_freq", c.rope_local_base_freq is None or slides, "null without rotary, sliding layers"
    yield "position_offset", c.position_kind == "learned" or c.position_offset == 0, "0 without learned positions"


def _norms_and_heads(c: "ModelConfig") -> Iterator[Rule]:
    yield "padded_vocab_size", c.padded_vocab_size >= c.vocab_size, f"vocab_size {c.vocab_size} or more"
    is_rms = c.norm_kind == "rms_norm"
    yield "norm_bias", not c.norm_bias or not is_rms, "false with rms_norm"
    yield "rms_norm_adds_one", not c.rms_norm_adds_one or is_rms, "false with layer_norm"
    is_pre = c.norm_placement == "pre"
    yield "parallel_residual", not c.parallel_residual or is_pre, f"false with norm_placement {c.norm_placement}"
    shares = not c.parallel_norm_is_shared or c.parallel_residual
    yield "parallel_norm_is_shared", shares, "false without parallel_residual"


def _experts(c: "ModelConfig") -> Iterator[Rule]:
    if c.num_experts:
        within = 1 <= c.num_experts_per_tok <= c.num_experts
        yield "num_experts_per_tok", within, f"1 to num_experts {c.num_experts}"
        layers = sorted(set(c.mlp_only_layers))
        fits = layers == sorted(c.mlp_only_layers) and all(
            type(n) is int and 0 <= n < c.num_hidden_layers for n in layers
        )
        expected = f"different layer numbers from 0 to {c.num_hidden_layers - 1}, not all of them"
        yield "mlp_only_layers", fits and len(layers) < c.num_hidden_layers, expected
        yield "mlp_bias", not c.mlp_bias or len(layers) > 0, "false where every layer has experts"
    for name, default in _EXPERT_KEYS.items():
        yield name, bool(c.num_experts) or getattr(c, name) == default, f"{default!r} without experts"
    gated = not c.shared_expert_is_gated or c.shared_expert_intermediate_size > 0
    yield "shared_expert_is_gated", gated, "false without a shared expert"
