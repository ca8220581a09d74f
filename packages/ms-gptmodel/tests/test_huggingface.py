"""Reading of Hugging Face's config.json: old and new spellings, defaults, refusals."""

import json

import pytest
from ms_gptmodel import ConfigError, from_huggingface, load_huggingface_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "pad_token_id": -1,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
}
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
GEMMA3 = {**SIZES, "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 16}


def test_old_and_new_spelling_of_the_rotary_keys_give_one_config():
    theta, scaling = LLAMA["rope_theta"], LLAMA["rope_scaling"]
    new = {key: value for key, value in LLAMA.items() if not key.startswith("rope")}
    new["rope_parameters"] = {**scaling, "rope_theta": theta}
    older = {**LLAMA, "rope_scaling": {**scaling, "type": "llama3"}}
    del older["rope_scaling"]["rope_type"]

    config = from_huggingface(LLAMA)

    assert config == from_huggingface(new) == from_huggingface(older)
    assert (config.rope_theta, config.rope_scaling["factor"]) == (500000.0, 8.0)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.pad_token_id is None


def test_keys_that_a_file_leaves_out_have_the_familys_defaults():
    mistral = from_huggingface({**SIZES, "num_attention_heads": 8, "model_type": "mistral"})
    unlimited = from_huggingface({**SIZES, "num_attention_heads": 8, "model_type": "mistral", "sliding_window": None})
    gemma2 = from_huggingface({**SIZES, "model_type": "gemma2"})
    neox = from_huggingface({**SIZES, "model_type": "gpt_neox"})

    assert (mistral.num_key_value_heads, mistral.sliding_window, unlimited.sliding_window) == (8, 4096, None)
    assert (gemma2.head_dim, gemma2.attn_logit_softcapping, gemma2.sliding_window) == (256, 50.0, 4096)
    assert gemma2.slides == (True, False) * 3
    assert (neox.partial_rotary_factor, neox.parallel_residual, neox.attention_bias) == (0.25, True, True)


def test_gemma_3_has_two_bases_in_both_spellings():
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {**GEMMA3, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
    new = {
        **GEMMA3,
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }

    config = from_huggingface(old)

    assert config == from_huggingface(new)
    assert (config.rope_theta, config.rope_local_base_freq, config.rope_scaling) == (1e6, 1e4, scaling)
    assert config.slides == ((True,) * 5 + (False,)) * 2


def test_yarns_attention_factor_is_computed_where_the_file_has_none():
    def factor(**keys):
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **keys}
        return from_huggingface({**SIZES, "model_type": "llama", "rope_scaling": scaling}).rope_scaling

    assert factor()["attention_factor"] == pytest.approx(1.1386294)
    assert factor(attention_factor=1.5)["attention_factor"] == 1.5
    assert factor(mscale=0.5, mscale_all_dim=1.0)["attention_factor"] == pytest.approx(1.0693147 / 1.1386294)
    assert (factor()["beta_fast"], factor()["truncate"]) == (32.0, True)


def test_deepseeks_shared_experts_are_one_wide_expert_without_a_gate():
    config = from_huggingface(
        {
            **SIZES, "model_type": "deepseek", "n_routed_experts": 8, "n_shared_experts": 2,
            "moe_intermediate_size": 16, "num_experts_per_tok": 3,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": False,
            "scoring_func": "softmax", "aux_loss_alpha": 0.01, "seq_aux": True, "num_key_value_heads": 4,
        }
    )  # fmt: skip

    assert (config.num_experts, config.num_experts_per_tok, config.norm_topk_prob) == (8, 3, False)
    assert (config.shared_expert_intermediate_size, config.shared_expert_is_gated) == (32, False)
    assert config.has_experts == (False, True, True, True, True, True)


@pytest.mark.parametrize("rotary_dim", range(2, 97, 2))
def test_every_rotary_dim_of_gpt_j_survives_being_a_factor(rotary_dim):
    values = {"vocab_size": 9, "n_embd": 192, "n_layer": 1, "n_head": 2, "n_positions": 8, "rotary_dim": rotary_dim}

    config = from_huggingface({**values, "model_type": "gptj", "bos_token_id": 50256, "eos_token_id": 50256})

    assert config.rotary_dim == rotary_dim
    assert config.bos_token_id is None  # not in this vocabulary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "t5"}, "config.json.model_type: 't5' is not known; known: bert, bloom"),
        ({"model_type": None}, "config.json.model_type: missing"),
        ({"hidden_size": None}, "config.json.hidden_size: missing"),
        ({"clip_qkv": 8.0, "logit_scale": 0.5}, "cannot tell what clip_qkv, logit_scale mean for the model"),
        ({"hidden_act": "quick_gelu"}, "hidden_act: expected one of silu, swish, gelu"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_parameters.rope_type: found 'mrope'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "rope_parameters: cannot tell what beta mean"),
        ({"model_type": "falcon", "alibi": True}, "config.json.alibi: found True: Falcon divides ALiBi's slopes"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "divided by the layer's number"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm: found True: layer norms of queries and keys"),
        ({"model_type": "deepseek", "scoring_func": "sigmoid"}, "the router's scores are no softmax"),
        ({"hidden_size": 30}, "model.num_attention_heads: expected a divisor of hidden_size 30"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes, message):
    values = {key: value for key, value in {**SIZES, "model_type": "llama", **changes}.items() if value is not None}

    with pytest.raises(ConfigError) as refused:
        from_huggingface(values)

    assert message in str(refused.value)


def test_a_file_or_its_folder_is_read_and_a_broken_one_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "torn.json").write_text("{")

    assert load_huggingface_config(tmp_path) == load_huggingface_config(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"torn\.json: not a JSON file"):
        load_huggingface_config(tmp_path / "torn.json")
