"""Dropout of adapters: in training only, on what goes into A, the same masks after a restart and under recompute."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import ConfigError, LanguageModel, ModelConfig, load_weights, named_parameters
from ms_gptmodel.lora import LoraConfig, inject_lora, lora_adapters, merge_lora

RATE = 0.3
IDS = np.arange(24, dtype=np.int32).reshape(2, 12)
ONE = {"num_hidden_layers": 1}  # graphs compile in half the time
EVERYWHERE = ("*.attention.*", "*.mlp.*")


@pytest.fixture
def adapted(families, model_of):
    """A model of a family with adapters that do something, and dropout of `rate` on them."""

    def make(family, rate=RATE, rank=0, **keys):
        model = LanguageModel(ModelConfig.from_mapping({**families[family], **keys}), rank=rank)
        names = named_parameters(model)
        load_weights(model, {n: value for n, value in model_of(family)[1].items() if n in names})
        inject_lora(model, LoraConfig(rank=4, targets=EVERYWHERE, dropout=rate))
        generator = np.random.default_rng(2)
        for adapter in lora_adapters(model).values():
            b = adapter.lora_B.weight
            b.set_data(Tensor(generator.standard_normal(b.shape).astype(np.float32) * 0.1))
        return model

    return make


@pytest.fixture
def pynative():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


class Loss(nn.Cell):
    """A loss that every logit moves."""

    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, ids):
        logits = self.model(ids)
        return (logits * logits).mean()


def trained_pieces(model, counts, is_recomputed=False):
    """Losses and gradients of the calls number `counts`."""
    loss = Loss(model).set_train(True)
    if is_recomputed:
        model.recompute_blocks()
    step, pieces = ops.value_and_grad(loss, None, model.trainable_params()), []
    for count in counts:
        ops.assign(model.counter.forward, Tensor(count, ms.int32))
        value, gradients = step(Tensor(IDS))
        pieces.append([value.asnumpy().copy(), *(g.asnumpy().copy() for g in gradients)])
        assert int(model.counter.forward.asnumpy()) == count + 1
    return pieces


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_calls_repeat_bit_for_bit_after_a_restart_and_under_recompute(mode, adapted):
    ms.set_context(mode=mode)
    try:
        whole = trained_pieces(adapted("llama", **ONE), [0, 1, 2])
        resumed = trained_pieces(adapted("llama", **ONE), [2])
        recomputed = trained_pieces(adapted("llama", **ONE), [1], is_recomputed=True)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)

    assert equal(whole[2], resumed[0])
    assert equal(whole[1], recomputed[0])
    assert whole[0][0] != whole[1][0] != whole[2][0]


def test_dropout_is_off_in_evaluation_and_changes_training(adapted, pynative):
    dropped, whole = adapted("llama"), adapted("llama", rate=0.0)

    evaluated = dropped(Tensor(IDS)).asnumpy()
    counted = int(dropped.counter.forward.asnumpy())
    trained = dropped.set_train(True)(Tensor(IDS)).asnumpy()

    np.testing.assert_array_equal(evaluated, whole(Tensor(IDS)).asnumpy())
    assert counted == 0
    assert np.abs(trained - evaluated).max() > 0.01
    assert whole.counter is None
    assert [n for n in named_parameters(dropped) if n.startswith("counter")] == ["counter.forward"]
    assert not dropped.counter.forward.requires_grad


def test_a_merged_adapter_drops_nothing(adapted, pynative):
    model = adapted("llama")
    evaluated = model(Tensor(IDS)).asnumpy()

    merge_lora(model)

    np.testing.assert_allclose(model.set_train(True)(Tensor(IDS)).asnumpy(), evaluated, rtol=0, atol=1e-5)


def test_masks_keep_one_minus_the_rate_and_differ_by_call_adapter_seed_and_rank(adapted, pynative):
    ones = Tensor(np.ones((64, 64), np.float32))
    masks = []
    for keys in ({}, {"dropout_seed": 1}, {"rank": 1}):
        model = adapted("llama", **keys)
        adapters = lora_adapters(model)
        for name, count in (("blocks.0.attention.query", 1), ("blocks.1.attention.query", 1), ("blocks.0.mlp.up", 2)):
            ops.assign(model.counter.forward, Tensor(count, ms.int32))
            masks.append(adapters[name].dropout(ones).asnumpy().ravel())
    ops.assign(model.counter.forward, Tensor(3, ms.int32))
    masks.append(adapters[name].dropout(ones).asnumpy().ravel())

    masks = np.array(masks)
    assert set(np.unique(masks)) == {0.0, np.float32(1 / (1 - RATE))}
    assert np.abs((masks > 0).mean(1) - (1 - RATE)).max() < 4.5 * np.sqrt(RATE * (1 - RATE) / 64**2)
    assert np.abs(np.corrcoef(masks)[np.triu_indices(len(masks), 1)]).max() < 4.5 / 64


def test_the_mask_falls_on_what_goes_into_a_and_experts_have_one_too(adapted, pynative):
    model = adapted("sliding").set_train(True)  # experts in block 0
    experts, inputs = model.blocks[0].mlp.experts.up, np.random.default_rng(0).standard_normal((3, 5, 48))
    x = Tensor(inputs.astype(np.float32))
    ops.assign(model.counter.forward, Tensor(1, ms.int32))

    out = experts(x, None).asnumpy()
    mask = experts.dropout(ops.ones_like(x)).asnumpy()
    weight, a, b = (p.asnumpy() for p in (experts.weight, experts.lora_A.weight, experts.lora_B.weight))
    expected = np.einsum("gsi,goi->gso", inputs, weight)
    expected += experts.scale * np.einsum("gsi,gri,gor->gso", inputs * mask, a, b)

    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    assert 0 < (mask == 0).mean() < 1
    assert "blocks.0.mlp.experts.down" in lora_adapters(model)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(ConfigError, match=r"lora.dropout: expected 0 or more and below 1"):
        LoraConfig(dropout=rate)
