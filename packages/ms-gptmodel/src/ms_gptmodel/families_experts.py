"""Families of Llama's kind with experts: what a config.json of Mixtral, Qwen-MoE or DeepSeek-MoE means."""

from ms_gptmodel.families_llama import attention_biases, llama_like, windows
from ms_gptmodel.huggingface import HuggingFaceValues, Keys


def mixtral(t: HuggingFaceValues) -> Keys:
    """Every layer sparse (Jiang et al. 2024)."""
    t.only("router_jitter_noise", (0.0, None), "noise on the router's input")
    return {
        **llama_like(t, eps=1e-5, key_value_heads=8, theta=1000000.0),
        "sliding_window": t.take("sliding_window", default=None),
        "num_experts": t.take("num_local_experts", "num_experts", default=8),
        "num_experts_per_tok": t.take("num_experts_per_tok", default=2), "norm_topk_prob": True,
        "router_aux_loss_coef": t.take("router_aux_loss_coef", default=0.001),
    }  # fmt: skip


def _experts(t: HuggingFaceValues, keys: Keys, *, num_experts: int, per_token: int, width: int) -> Keys:
    """Qwen's keys of experts."""
    step, dense = t.take("decoder_sparse_step", default=1), t.take("mlp_only_layers", default=[])
    layers = range(keys["num_hidden_layers"])
    return {
        **keys, "num_experts": t.take("num_experts", "num_local_experts", default=num_experts),
        "num_experts_per_tok": t.take("num_experts_per_tok", default=per_token),
        "norm_topk_prob": t.take("norm_topk_prob", default=False),
        "moe_intermediate_size": t.take("moe_intermediate_size", default=width),
        "router_aux_loss_coef": t.take("router_aux_loss_coef", default=0.001),
        "mlp_only_layers": [n for n in layers if n in dense or (n + 1) % step],
    }  # fmt: skip


def qwen2_moe(t: HuggingFaceValues) -> Keys:
    """A gated shared expert beside the chosen ones (Qwen team 2024)."""
    keys = {**llama_like(t, key_value_heads=16), "attention_bias": t.take("qkv_bias", default=True)}
    keys = _experts(t, keys, num_experts=60, per_token=4, width=1408)
    keys["shared_expert_intermediate_size"] = t.take("shared_expert_intermediate_size", default=5632)
    keys["shared_expert_is_gated"] = True
    slides, first = t.take("use_sliding_window", default=False), t.take("max_window_layers", default=28)
    layers = range(keys["num_hidden_layers"])
    slide = [slides and n % 2 == 0 and n < first for n in layers]
    return windows(t, keys, ["sliding_attention" if s else "full_attention" for s in slide])


def qwen3_moe(t: HuggingFaceValues) -> Keys:
    """Norms of queries and keys, no shared expert (Qwen team 2025)."""
    keys = {**llama_like(t, key_value_heads=4), **attention_biases(t), "qk_norm": True}
    slides, window = t.take("use_sliding_window", default=False), t.take_or_null("sliding_window", absent=4096)
    keys["sliding_window"] = window if slides else None
    return _experts(t, keys, num_experts=128, per_token=8, width=768)


def deepseek(t: HuggingFaceValues) -> Keys:
    """DeepSeek-MoE (Dai et al. 2024); its successors have another attention, which the contract has no keys for."""
    t.only("scoring_func", ("softmax",), "the router's scores are no softmax")
    t.only("topk_method", ("greedy", None), "experts are chosen by groups")
    t.only("routed_scaling_factor", (1.0, None), "the experts' sum is scaled")
    t.only("seq_aux", (True, False), "another auxiliary loss")
    keys = {**llama_like(t), **attention_biases(t)}
    first, step = t.take("first_k_dense_replace", default=0), t.take("moe_layer_freq", default=1)
    width, num_shared = t.take("moe_intermediate_size"), t.take("n_shared_experts", default=0)
    return {
        **keys, "num_experts": t.take("n_routed_experts"), "num_experts_per_tok": t.take("num_experts_per_tok"),
        "norm_topk_prob": t.take("norm_topk_prob", default=False), "moe_intermediate_size": width,
        "shared_expert_intermediate_size": num_shared * width,
        "mlp_only_layers": [n for n in range(keys["num_hidden_layers"]) if n < first or n % step],
        "router_aux_loss_coef": t.take("aux_loss_alpha", default=0.001),
    }  # fmt: skip
