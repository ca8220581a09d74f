"""Mixtures of experts: Mixtral, Qwen2-MoE, Qwen3-MoE; one tensor an expert in the file, one for all of them here."""

from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.families.lines import BLOCK, heads, token_ids
from ms_weightconv.families.llama import ATTENTION, DENSE_MLP, FIELDS, LAYER, NORMS, table
from ms_weightconv.family import Derived, Family, Field, TheirConfig
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Rule
from ms_weightconv.steps import Stack
from ms_weightconv.windows import mixed_windows, one_window

_NO_OTHER_BIAS = {"attention_output_bias": False, "mlp_bias": False}


def _experts(folder: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    theirs, ours = f"{LAYER}.{folder}", f"{BLOCK}.mlp"
    return (
        Rule(f"{theirs}.gate.weight", f"{ours}.router.weight", when="experts"),
        *(
            Rule(
                f"{theirs}.experts.{{expert}}.{name}.weight",
                f"{ours}.experts.{part}.weight",
                (Stack(),),
                when="experts",
            )
            for part, name in (("gate", gate), ("up", up), ("down", down))
        ),
    )


_SHARED_EXPERT = (
    *(
        Rule(
            f"{LAYER}.mlp.shared_expert.{part}_proj.weight",
            f"{BLOCK}.mlp.shared_expert.{part}.weight",
            when="shared_expert",
        )
        for part in ("gate", "up", "down")
    ),
    Rule(
        f"{LAYER}.mlp.shared_expert_gate.weight",
        f"{BLOCK}.mlp.shared_expert_gate.weight",
        when="shared_expert and shared_expert_is_gated",
    ),
)


def _read_dense_layers(theirs: TheirConfig) -> Config:
    layers, step, dense = (theirs.get(key) for key in ("num_hidden_layers", "decoder_sparse_step", "mlp_only_layers"))
    step, dense = 1 if step is None else step, [] if dense is None else dense
    if not isinstance(layers, int) or not 0 < layers < 1 << 20 or not isinstance(step, int) or step < 1:
        raise ConfigError(f"decoder_sparse_step: found {step!r:.100} with {layers!r:.100} layers")
    if not isinstance(dense, list) or not all(type(each) is int for each in dense):
        raise ConfigError(f"mlp_only_layers: found {dense!r:.100}, expected a list of layer numbers")
    return {"mlp_only_layers": [n for n in range(layers) if n in dense or (n + 1) % step]}


def _write_dense_layers(config: Config) -> dict[str, Any]:
    return {"mlp_only_layers": list(config["mlp_only_layers"]), "decoder_sparse_step": 1}


_QWEN_FIELDS: tuple[Field | Derived, ...] = (
    *FIELDS,
    *token_ids(None, None),
    rotary_keys(),
    Field("norm_topk_prob", "norm_topk_prob", False),
    Field("router_aux_loss_coef", "router_aux_loss_coef", 0.001),
    Derived(("mlp_only_layers", "decoder_sparse_step"), ("mlp_only_layers",), _read_dense_layers, _write_dense_layers),
)

MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *_experts("block_sparse_moe", "w1", "w3", "w2")),
    fields=(
        *(field for field in FIELDS if field.theirs != "rms_norm_eps"),
        Field("rms_norm_eps", "rms_norm_eps", 1e-5),
        *token_ids(1, 2),
        rotary_keys(theta=1e6),
        one_window(None),
        Field("num_key_value_heads", "num_key_value_heads", 8, when_null=heads),
        Field("head_dim", "head_dim", None),
        Field("num_local_experts", "num_experts", 8, aliases=("num_experts",)),
        Field("num_experts_per_tok", "num_experts_per_tok", 2),
        Field("router_aux_loss_coef", "router_aux_loss_coef", 0.001),
    ),
    constants={**_NO_OTHER_BIAS, "attention_bias": False, "norm_topk_prob": True},
)

QWEN2_MOE = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP, *_experts("mlp", "gate_proj", "up_proj", "down_proj"), *_SHARED_EXPERT),
    fields=(
        *_QWEN_FIELDS,
        mixed_windows(
            lambda theirs, layer: layer % 2 == 0 and layer < theirs.get("max_window_layers", 28),
            "max_window_layers",
            switch="use_sliding_window",
        ),
        Field("qkv_bias", "attention_bias", True),
        Field("num_key_value_heads", "num_key_value_heads", 16, when_null=heads),
        Field("head_dim", "head_dim", None),
        Field("num_experts", "num_experts", 60),
        Field("num_experts_per_tok", "num_experts_per_tok", 4),
        Field("moe_intermediate_size", "moe_intermediate_size", 1408),
        Field("shared_expert_intermediate_size", "shared_expert_intermediate_size", 5632),
    ),
    constants={**_NO_OTHER_BIAS, "shared_expert_is_gated": True},
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP, *_experts("mlp", "gate_proj", "up_proj", "down_proj")),
    fields=(
        *_QWEN_FIELDS,
        one_window(4096, switch="use_sliding_window"),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Field("num_key_value_heads", "num_key_value_heads", 4, when_null=heads),
        Field("head_dim", "head_dim", None),
        Field("num_experts", "num_experts", 128, aliases=("num_local_experts",)),
        Field("num_experts_per_tok", "num_experts_per_tok", 8),
        Field("moe_intermediate_size", "moe_intermediate_size", 768),
    ),
    constants={"mlp_bias": False, "qk_norm": True},
)
