"""Adapters: untouched output at first, only they learn, merging there and back, PEFT's files."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import ConfigError, LanguageModel, ModelConfig, WeightsError, load_weights, named_parameters
from ms_gptmodel.lora import LoraConfig, inject_lora, lora_adapters, merge_lora, unmerge_lora
from ms_gptmodel.peft import load_adapters, save_adapters
from safetensors.numpy import load_file, save_file

IDS = np.arange(24, dtype=np.int32).reshape(2, 12)


@pytest.fixture(autouse=True)
def _pynative_mode():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.fixture
def fresh(families, random_weights):
    def make(family):
        model = LanguageModel(ModelConfig.from_mapping(families[family]))
        weights = random_weights(model)
        load_weights(model, weights)
        return model, weights

    return make


def randomize(model):
    generator = np.random.default_rng(2)
    for adapter in lora_adapters(model).values():
        b = adapter.lora_B.weight
        b.set_data(Tensor(generator.standard_normal(b.shape).astype(np.float32) * 0.1))


def logits(model):
    return model(Tensor(IDS)).asnumpy()


def test_a_fresh_adapter_changes_nothing_and_the_contracts_names_stay(fresh):
    model, weights = fresh("llama")
    before = logits(model)

    names = inject_lora(model, LoraConfig(rank=4, targets=("*.attention.*", "*.mlp.down")))

    assert len(names) == 10
    np.testing.assert_array_equal(logits(model), before)
    after = named_parameters(model)
    assert set(weights) < set(after)
    assert {name for name in after if name not in weights} == {f"{n}.lora_{ab}.weight" for n in names for ab in "AB"}
    assert {p.name for p in model.trainable_params()} == {name for name in after if ".lora_" in name}
    assert after["blocks.0.attention.key.lora_A.weight"].shape == (4, 48)
    assert after["blocks.0.attention.key.lora_B.weight"].shape == (16, 4)  # grouped: 2 of 6 heads


@pytest.mark.parametrize("family", ["gpt2", "llama", "sliding"])
def test_merged_equals_base_plus_adapter_and_unmerged_is_as_before(family, fresh):
    model, weights = fresh(family)
    base = logits(model)
    inject_lora(model, LoraConfig(rank=4, alpha=3.0, targets=("*.attention.*", "*.mlp.*")))
    randomize(model)

    adapted = logits(model)
    merge_lora(model)
    merged = logits(model)
    with pytest.raises(WeightsError, match="merged already"):
        merge_lora(model)
    unmerge_lora(model)

    assert np.abs(adapted - base).max() > 0.01
    np.testing.assert_allclose(merged, adapted, rtol=0, atol=1e-5)
    for name, parameter in named_parameters(model).items():
        if name in weights:
            np.testing.assert_allclose(parameter.asnumpy(), weights[name], rtol=0, atol=1e-6)
    with pytest.raises(WeightsError, match="not merged"):
        unmerge_lora(model)


def test_the_scale_is_alpha_by_rank_or_by_its_root(fresh):
    outputs = []
    for config in (LoraConfig(rank=4, alpha=8.0), LoraConfig(rank=4, alpha=4.0, uses_rslora=True)):
        model, _ = fresh("llama")
        inject_lora(model, config)
        randomize(model)
        outputs.append(logits(model))

    assert (LoraConfig(rank=4, alpha=8.0).scale, LoraConfig(rank=16, alpha=8.0, uses_rslora=True).scale) == (2.0, 2.0)
    np.testing.assert_array_equal(*outputs)


@pytest.mark.slow
def test_training_moves_adapters_only_and_lowers_the_loss(fresh):
    model, weights = fresh("llama")
    inject_lora(model, LoraConfig(rank=4, targets=("*.attention.query", "*.mlp.up")))

    class Loss(nn.Cell):
        def __init__(self, model):
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, ids):
            return (self.model(ids) ** 2).mean()

    parameters = model.trainable_params()
    step, losses = ops.value_and_grad(Loss(model), None, parameters), []
    for _ in range(6):
        loss, gradients = step(Tensor(IDS))
        losses.append(float(loss.asnumpy()))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.set_data(parameter - 0.5 * gradient)

    assert losses[-1] < losses[0] - 0.01
    for name, parameter in named_parameters(model).items():
        if name in weights:
            np.testing.assert_array_equal(parameter.asnumpy(), weights[name])


def test_impossible_adapters_are_refused(fresh):
    model, _ = fresh("llama")

    with pytest.raises(
        ConfigError, match=r"lora.targets: 'q_proj' names no matrix; there are blocks.0.attention.query"
    ):
        inject_lora(model, LoraConfig(targets=("q_proj",)))
    with pytest.raises(WeightsError, match="no adapters"):
        merge_lora(model)
    inject_lora(model, LoraConfig())
    with pytest.raises(WeightsError, match="adapters already"):
        inject_lora(model, LoraConfig())
    for options, name in (({"rank": 0}, "rank"), ({"alpha": 0.0}, "alpha"), ({"targets": ()}, "targets")):
        with pytest.raises(ConfigError, match=f"lora.{name}: expected"):
            LoraConfig(**options)


def test_merging_is_seen_by_a_graph_that_was_compiled_before(fresh):
    ms.set_context(mode=ms.GRAPH_MODE)
    model, _ = fresh("llama")
    inject_lora(model, LoraConfig(rank=2))
    randomize(model)
    adapted = logits(model)

    merge_lora(model)
    merged = logits(model)

    np.testing.assert_allclose(merged, adapted, rtol=0, atol=1e-5)
    assert all((adapter.lora_B.weight.asnumpy() == 0).all() for adapter in lora_adapters(model).values())


@pytest.mark.parametrize(("family", "name"), [("llama", "model.layers.0.self_attn.q_proj"), ("sliding", None)])
def test_adapters_survive_pefts_files(family, name, fresh, tmp_path):
    model, _ = fresh(family)
    config = LoraConfig(rank=3, alpha=5.0, uses_rslora=True, dropout=0.2, targets=("*.attention.query", "*.mlp.*"))
    inject_lora(model, config)
    randomize(model)

    save_adapters(model, config, tmp_path)
    other, _ = fresh(family)
    loaded = load_adapters(other, tmp_path)

    np.testing.assert_array_equal(logits(other), logits(model))
    assert (loaded.scale, loaded.dropout) == (config.scale, 0.2)
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (values["r"], values["lora_alpha"], values["use_rslora"], values["peft_type"]) == (3, 5.0, True, "LORA")
    assert values["lora_dropout"] == 0.2
    if name is not None:
        assert load_file(tmp_path / "adapter_model.safetensors")[f"base_model.model.{name}.lora_A.weight"].shape == (
            3,
            48,
        )
        assert name in values["target_modules"]


def test_adapters_with_the_contracts_names_are_read_too(fresh, tmp_path):
    model, _ = fresh("llama")
    config = LoraConfig(rank=3, targets=("*.attention.query", "*.mlp.down"))
    inject_lora(model, config)
    randomize(model)
    save_adapters(model, config, tmp_path)
    arrays = load_file(tmp_path / "adapter_model.safetensors")
    ours = {"self_attn.q_proj": "attention.query", "mlp.down_proj": "mlp.down"}
    renamed = {}
    for key, array in arrays.items():
        layer, module, end = key.removeprefix("base_model.model.model.layers.").partition(".")[0], *_module_of(key)
        renamed[f"base_model.model.blocks.{layer}.{ours[module]}.{end}"] = array
    save_file(renamed, tmp_path / "adapter_model.safetensors")
    other, _ = fresh("llama")

    load_adapters(other, tmp_path)

    assert set(renamed).isdisjoint(arrays)
    np.testing.assert_array_equal(logits(other), logits(model))
    twice, _ = fresh("llama")
    save_file(arrays | renamed, tmp_path / "adapter_model.safetensors")
    with pytest.raises(WeightsError, match="stands there twice"):
        load_adapters(twice, tmp_path)


def _module_of(key):
    module, _, end = key.split(".", 5)[5].partition(".lora_")
    return module, f"lora_{end}"


def test_adapter_files_that_do_not_fit_are_refused_and_change_nothing(fresh, tmp_path):
    model, _ = fresh("llama")
    config = LoraConfig(rank=3)
    inject_lora(model, config)
    save_adapters(model, config, tmp_path)
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    arrays = load_file(tmp_path / "adapter_model.safetensors")
    other, _ = fresh("llama")

    def refusal(changed_values=values, changed_arrays=arrays):
        (tmp_path / "adapter_config.json").write_text(json.dumps(changed_values))
        save_file(changed_arrays, tmp_path / "adapter_model.safetensors")
        with pytest.raises(WeightsError) as refused:
            load_adapters(other, tmp_path)
        assert not lora_adapters(other)
        return str(refused.value)

    key = next(iter(arrays))
    assert "use_dora True is not supported" in refusal({**values, "use_dora": True})
    assert "expected an object with r and lora_alpha" in refusal({})
    assert "no matrix of this model has that name" in refusal(
        values, {**arrays, "base_model.model.x.lora_A.weight": arrays[key]}
    )
    assert "expected" in refusal(values, {**arrays, key: np.zeros((4, 48), np.float32)})
    assert "expected" in refusal(values, {k: v for k, v in arrays.items() if k != key})
