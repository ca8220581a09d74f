import json

import pytest
from ms_weightconv import convert
from ms_weightconv.contract import read_config
from ms_weightconv.errors import ConfigError, WeightConvError
from ms_weightconv.parameters import parameter_shapes
from ms_weightconv.source import open_source

LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {
            "rope_theta": ...,
            "rope_scaling": ...,
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        },
        {
            "rope_theta": ...,
            "rope_scaling": ...,
            "rope_parameters": {"rope_type": "llama3", "type": "llama3", "rope_theta": 500000, **LLAMA3},
        },
    ],
)
def test_old_and_new_forms_of_rotary_settings_mean_the_same_and_come_back_as_they_were(folders, form):
    source = folders.huggingface("llama", **form)

    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    config = folders.json(folders.root / "ours" / "config.json")
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == {"rope_type": "llama3", **LLAMA3}
    assert folders.json(folders.root / "back" / "config.json") == folders.json(source / "config.json")


def test_linear_scaling_and_the_default_type_are_read(folders):
    linear = folders.huggingface("llama", name="a", rope_scaling={"type": "linear", "factor": 2.0})
    default = folders.huggingface("llama", name="b", rope_scaling={"rope_type": "default"})

    assert open_source(linear).config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert open_source(default).config["rope_scaling"] is None


REFUSED = [
    (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "sliding_attention, but sliding_window is None",
    ),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types: found"),
    ("gemma2", {"layer_types": ["sliding_attention"]}, "layer_types"),
    ("gemma3", {"sliding_window_pattern": 0, "layer_types": ...}, "sliding_window_pattern"),
    ("gemma", {"hidden_activation": "relu"}, "hidden_activation: found 'relu'"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm: found True"),
    ("falcon", {"alibi": True}, "alibi: found True: positions by an ALiBi bias that is divided"),
    ("falcon", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn: found false"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: found 2"),
    ("falcon", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads: found 2"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
    ("gptj", {"rotary_dim": 5}, "partial_rotary_factor|rotary_dim"),
    ("gptj", {"rotary_dim": None}, "rotary_dim: found None"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: found 'relative_key'"),
    ("bert", {"is_decoder": True}, "is_decoder: found True"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine: found False"),
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 of 4 experts"),
    ("qwen2_moe", {"mlp_only_layers": "all"}, "mlp_only_layers: found 'all'"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step: found 0"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "strange": 1}}, "yarn with strange"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1]}}, "longrope needs long_factor"),
    ("llama", {"hidden_act": "gelu_fast"}, "hidden_act: expected one of silu"),
    ("llama", {"rope_scaling": {"rope_type": "proportional"}}, "rope_scaling: found type 'proportional'"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
        "llama3 needs low_freq_factor, high_freq_factor",
    ),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "linear with beta"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: found 0.5"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config.*dequantize"),
    ("llama", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map.*code of its own"),
    ("llama", {"vocab_size": ...}, "vocab_size: missing"),
    ("llama", {"vocab_size": "40"}, "vocab_size: expected a whole number"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps: expected a number above 0"),
    ("llama", {"num_key_value_heads": 3}, "no multiple of num_key_value_heads 3"),
    ("llama", {"model_type": "mamba"}, "family 'mamba' is not known; known: gpt2, gpt_neox"),
    ("llama", {"model_type": ...}, "family None is not known"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: found False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: found True"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention: found True"),
    ("gpt2", {"n_embd": ..., "n_layer": ...}, "n_embd: missing; n_layer: missing"),
]


@pytest.mark.parametrize(("family", "change", "text"), REFUSED)
def test_what_changes_the_computation_and_cannot_be_said_is_refused_by_name(folders, family, change, text):
    source = folders.huggingface(family)
    config = {key: value for key, value in (folders.configs[family] | change).items() if value is not ...}
    (source / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=text):
        open_source(source)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("mistral", {"sliding_window": 64}),
        ("mistral", {"sliding_window": ...}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "layer_types": ["sliding_attention"] * 2}),
        ("qwen3", {"layer_types": ["full_attention"] * 2}),
        ("llama", {"attention_dropout": 0.3, "quantization_config": None, "hidden_act": "swish"}),
    ],
)
def test_what_changes_nothing_is_accepted_and_comes_back(folders, family, change):
    source = folders.huggingface(family, **change)

    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    assert folders.json(folders.root / "back" / "config.json") == folders.json(source / "config.json")


@pytest.mark.parametrize(
    ("family", "attention", "residual", "embedding"),
    [
        ("gpt2", "attn_pdrop", "resid_pdrop", "embd_pdrop"),
        ("gptj", "attn_pdrop", "resid_pdrop", "embd_pdrop"),
        ("gpt_neox", "attention_dropout", "hidden_dropout", "hidden_dropout"),
        ("opt", "attention_dropout", "dropout", None),
        ("bloom", "attention_dropout", "hidden_dropout", None),
        ("falcon", "attention_dropout", "hidden_dropout", None),
        ("phi", "attention_dropout", "resid_pdrop", "embd_pdrop"),
        ("phi3", "attention_dropout", "resid_pdrop", "embd_pdrop"),
        ("bert", "attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_dropout_prob"),
        *(
            (name, "attention_dropout", None, None)
            for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")
        ),
        *((name, "attention_dropout", None, None) for name in ("gemma3", "mixtral", "qwen2_moe", "qwen3_moe")),
    ],
)
def test_dropout_rates_are_read_changed_and_written_back(folders, family, attention, residual, embedding):
    rates = {attention: 0.125}
    for name, rate in ((residual, 0.25), (embedding, 0.25 if embedding == residual else 0.5)):
        if name:
            rates[name] = rate
    ours, back, fresh = (folders.root / name for name in ("ours", "back", "fresh"))
    convert(folders.huggingface(family, also=rates), ours, to="mindspore", progress=False)

    config = folders.json(ours / "config.json")
    assert config["attention_dropout"] == 0.125
    assert config["residual_dropout"] == (rates[residual] if residual else 0.0)
    assert config["embedding_dropout"] == (rates[embedding] if embedding else 0.0)

    (ours / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.375}))
    convert(ours, back, to="huggingface", progress=False)
    (ours / "huggingface.json").unlink()
    convert(ours, fresh, to="huggingface", progress=False)

    for folder in (back, fresh):
        written = folders.json(folder / "config.json")
        assert {key: written[key] for key in rates} == {**rates, attention: 0.375}


def test_missing_keys_mean_what_transformers_classes_take_for_them(folders):
    gpt2 = open_source(folders.huggingface("gpt2", name="a", bos_token_id=..., eos_token_id=...)).config
    qwen3 = open_source(folders.huggingface("qwen3", name="b", head_dim=..., rms_norm_eps=..., rope_theta=...)).config
    llama = open_source(folders.huggingface("llama", name="c", num_key_value_heads=..., head_dim=None)).config

    assert (gpt2["bos_token_id"], gpt2["eos_token_id"], gpt2["intermediate_size"]) == (50256, 50256, 64)
    assert (qwen3["head_dim"], qwen3["rms_norm_eps"], qwen3["rope_theta"]) == (128, 1e-6, 10000.0)
    assert (llama["num_key_value_heads"], llama["head_dim"]) == (4, 4)
    assert gpt2["tie_word_embeddings"] is True


def test_unknown_keys_are_reported_and_come_back(folders):
    source = folders.huggingface("llama", embedding_multiplier=12.0, use_cache=True)

    report = convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    assert report.unknown_fields == ("embedding_multiplier",)
    assert "use_cache" in report.carried_fields
    assert folders.json(folders.root / "back" / "config.json")["embedding_multiplier"] == 12.0


def test_several_end_ids_of_the_generation_config_count_and_come_back(folders):
    generation = {"eos_token_id": [2, 7, 7, 9], "temperature": 0.6, "pad_token_id": 3}
    source = folders.huggingface("llama", generation=generation)

    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    config = folders.json(folders.root / "ours" / "config.json")
    back = folders.json(folders.root / "back" / "generation_config.json")
    assert (config["eos_token_id"], config["pad_token_id"]) == ([2, 7, 9], 3)
    assert back == generation | {"eos_token_id": [2, 7, 9], "bos_token_id": 1}
    assert folders.json(folders.root / "back" / "config.json")["eos_token_id"] == 2


def test_a_value_changed_on_our_side_reaches_the_way_back_and_the_rest_stays(folders):
    source = folders.huggingface("llama3", generation={"eos_token_id": [2, 3]})
    convert(source, folders.root / "ours", to="mindspore", progress=False)
    path = folders.root / "ours" / "config.json"
    changed = {
        "eos_token_id": [5, 6],
        "rope_scaling": None,
        "rms_norm_eps": 1e-4,
        "tokenizer_fingerprint": "sha256:" + "a" * 64,
    }
    path.write_text(json.dumps(folders.json(path) | changed))

    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)
    convert(folders.root / "back", folders.root / "again", to="mindspore", progress=False)

    back, original = folders.json(folders.root / "back" / "config.json"), folders.json(source / "config.json")
    assert (back["eos_token_id"], back["rms_norm_eps"], back["rope_scaling"]) == ([5, 6], 1e-4, None)
    assert back["attention_dropout"] == original["attention_dropout"]
    assert folders.json(folders.root / "again" / "config.json") == folders.json(path)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "bert", "gemma3", "gptj", "opt", "qwen2_moe"])
def test_names_and_shapes_are_those_of_the_contracts_golden_files(contracts, name):
    folder = contracts / "model" / "golden" / name
    config = read_config(json.loads((folder / "config.json").read_text()), name)

    expected = {key: tuple(shape) for key, shape in json.loads((folder / "parameters.json").read_text()).items()}
    assert parameter_shapes(config) == expected


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "version 2; this program reads 'ms-gptmodel.config' version 1"),
        ({"format": "other"}, "format 'other'"),
        ({"hiden_size": 3}, "hiden_size: unknown key; did you mean hidden_size"),
        ({"eos_token_id": [1, 1]}, "eos_token_id: expected"),
        ({"qk_norm": 1}, "qk_norm: expected true or false, found 1"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "rope_scaling.rope_type: found 'ntk'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling: found keys"),
        ({"sliding_window": 8, "layer_types": ["full_attention"] * 9}, "layer_types: 9 entries"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window is None with layer_types"),
        ({"norm_kind": "layer_norm", "rms_norm_adds_one": True}, "rms_norm_adds_one"),
        ({"position_kind": "learned", "rope_interleaved": True}, "rotary keys"),
        ({"norm_topk_prob": False}, "norm_topk_prob: set, but num_experts is 0"),
    ],
)
def test_a_config_outside_the_contract_is_refused(contracts, change, text):
    golden = json.loads((contracts / "model" / "golden" / "llama" / "config.json").read_text())

    with pytest.raises(ConfigError, match=text):
        read_config(golden | change, "config.json")


@pytest.mark.parametrize(
    "family", ["gpt2", "llama3", "mistral", "qwen2", "falcon", "gemma3", "qwen2_moe", "opt", "phi3", "gptj"]
)
def test_no_value_of_any_key_ends_in_anything_but_a_named_refusal_or_a_right_answer(folders, family):
    source = folders.huggingface(family, generation={"eos_token_id": 2})
    config = folders.configs[family]
    keys = [*config, "layer_types", "rope_parameters", "quantization_config", "tokenizer_fingerprint", "architectures"]
    refusals = []

    for key in keys:
        for value in ([], {}, [[1]], [{}], {"a": {}}, "x", "", True, None, -1, 0, 1.5, 10**30, [1, "2"], [10**12]):
            (source / "config.json").write_text(json.dumps(config | {key: value}))
            try:
                open_source(source).align()
            except WeightConvError as error:
                refusals.append(str(error))
    (source / "config.json").write_text(json.dumps(config))

    assert len(refusals) > 100
    assert all(str(source) in text and len(text) < 20_000 for text in refusals)
    for value in ({}, [[1]], "x", -5, 1.5, True, [None]):
        (source / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        with pytest.raises(WeightConvError, match="eos_token_id"):
            open_source(source)
