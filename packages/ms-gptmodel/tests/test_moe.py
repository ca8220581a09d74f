"""Experts: every way to run them against one token at a time, ties, gradients, and the losses of the router by hand."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import LanguageModel, ModelConfig, load_weights, named_parameters
from ms_gptmodel.moe import ExpertChoice, MoeFeedForward, RouterLoss

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 32,
}


def make(**switches):
    return ModelConfig(**SIZES, moe_intermediate_size=6, **switches)


def layer_of(config):
    generator = np.random.default_rng(4)
    layer = MoeFeedForward(config)
    weights = {name: generator.standard_normal(p.shape).astype(np.float32) * 0.4 for name, p in layer_weights(layer)}
    for name, parameter in layer_weights(layer):
        parameter.set_data(Tensor(weights[name]))
    return layer, weights


def layer_weights(layer):
    return list(layer.parameters_and_names())


def by_hand(x, w, config):
    """One token at a time, in float64."""
    silu = lambda v: v / (1 + np.exp(-v))  # noqa: E731
    w = {name: value.astype(np.float64) for name, value in w.items()}
    out = np.zeros_like(x, np.float64)
    for r, row in enumerate(x.astype(np.float64)):
        logits = w["router.weight"] @ row
        p = np.exp(logits - logits.max())
        p /= p.sum()
        chosen = np.argsort(-p, kind="stable")[: config.num_experts_per_tok]
        share = p[chosen] / (p[chosen].sum() if config.norm_topk_prob else 1)
        for e, s in zip(chosen, share, strict=True):
            gate, up, down = (w[f"experts.{part}.weight"][e] for part in ("gate", "up", "down"))
            out[r] += s * (down @ (silu(gate @ row) * (up @ row)))
        if config.shared_expert_intermediate_size:
            gate, up, down = (w[f"shared_expert.{part}.weight"] for part in ("gate", "up", "down"))
            shared = down @ (silu(gate @ row) * (up @ row))
            if config.shared_expert_is_gated:
                shared /= 1 + np.exp(-(w["shared_expert_gate.weight"] @ row))
            out[r] += shared
    return out


@pytest.mark.parametrize(
    ("rows", "switches"),
    [
        (2, {"num_experts": 7, "num_experts_per_tok": 3}),  # few rows: copies of matrices
        (11, {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False}),  # all experts
        (23, {"num_experts": 7, "num_experts_per_tok": 2}),  # groups of one expert
        (23, {"num_experts": 7, "num_experts_per_tok": 1, "shared_expert_intermediate_size": 5}),
        (
            9,
            {
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "shared_expert_intermediate_size": 5,
                "shared_expert_is_gated": True,
            },
        ),
    ],
)
def test_every_way_to_run_experts_equals_one_token_at_a_time(rows, switches):
    config = make(**switches)
    layer, weights = layer_of(config)
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    alike = np.tile(x[:1], (rows, 1))  # all rows want the same experts

    np.testing.assert_allclose(layer(Tensor(x)).asnumpy(), by_hand(x, weights, config), rtol=0, atol=1e-5)
    np.testing.assert_allclose(layer(Tensor(alike)).asnumpy(), by_hand(alike, weights, config), rtol=0, atol=1e-5)


def test_of_equal_experts_the_lower_numbers_are_chosen():
    logits = Tensor(np.array([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [5.0, 0.0, 0.0, 7.0]], np.float32))

    experts, weights, chosen = (t.asnumpy() for t in ExpertChoice(2, True)(logits))

    np.testing.assert_array_equal(experts, [[1, 2], [0, 1], [3, 0]])
    np.testing.assert_array_equal(chosen, [[0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]])
    np.testing.assert_allclose(weights[:2], 0.5, atol=1e-6)


def test_the_routers_losses_are_those_of_a_case_by_hand():
    logits = np.log(np.array([[[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]], np.float32)) + 1.0
    config = make(num_experts=2, num_experts_per_tok=1, router_aux_loss_coef=0.1, router_z_loss_coef=0.5)
    two_layers = [Tensor(logits[0]), Tensor(logits[0])]

    def loss(counts, config=config):
        return float(RouterLoss(config)(two_layers, Tensor(np.array(counts, np.int32))).asnumpy())

    # All four: f = (3/4, 1/4) as the tie goes to 0, P = (9/16, 7/16). Three: f = (2/3, 1/3), P = (7/12, 5/12).
    assert loss([1, 1, 1, 1]) == pytest.approx(0.1 * 2 * (3 / 4 * 9 / 16 + 1 / 4 * 7 / 16) + 0.5, rel=1e-5)
    assert loss([1, 1, 1, 0]) == pytest.approx(0.1 * 2 * (2 / 3 * 7 / 12 + 1 / 3 * 5 / 12) + 0.5, rel=1e-5)
    assert loss([0, 0, 0, 0]) == 0
    only_z = make(num_experts=2, num_experts_per_tok=1, router_z_loss_coef=0.5)
    assert loss([1, 1, 1, 1], only_z) == pytest.approx(0.5, rel=1e-5)  # log sum exp is 1 everywhere


class Loss(nn.Cell):
    """Sum of weighted logits, plus the auxiliary loss where the model gives one."""

    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, ids, segments):
        out = self.model(ids, None, segments)
        if isinstance(out, tuple):
            return out[0].sum() * 0.001 + out[1]
        return out.sum() * 0.001


def gradients_of(model, ids, segments):
    parameters = named_parameters(model)
    loss, gradients = ops.value_and_grad(Loss(model), None, list(parameters.values()))(Tensor(ids), Tensor(segments))
    return float(loss.asnumpy()), {name: g.asnumpy() for name, g in zip(parameters, gradients, strict=True)}


@pytest.mark.slow
def test_the_router_learns_and_recompute_changes_nothing_and_padding_does_not_count(random_weights):
    config = make(num_experts=5, num_experts_per_tok=2, router_aux_loss_coef=0.5, router_z_loss_coef=0.1)
    model, again = LanguageModel(config), LanguageModel(config)
    for cell in (model, again):
        load_weights(cell, random_weights(model))
        cell.set_train(True)
    again.recompute_blocks()
    ids = np.random.default_rng(1).integers(0, 20, (2, 9)).astype(np.int32)
    segments = np.ones_like(ids)
    segments[1, 5:] = 0
    changed = np.where(segments == 0, 3, ids)

    loss, gradients = gradients_of(model, ids, segments)
    loss_again, gradients_again = gradients_of(again, ids, segments)

    assert loss == loss_again
    assert all(np.array_equal(gradients[name], gradients_again[name]) for name in gradients)
    assert all(np.isfinite(g).all() for g in gradients.values())
    assert all(np.abs(gradients[f"blocks.{n}.mlp.router.weight"]).max() > 1e-4 for n in range(2))
    auxiliary, same = (model(Tensor(x), None, Tensor(segments))[1].asnumpy() for x in (ids, changed))
    assert auxiliary == same > 0


@pytest.mark.slow
def test_no_coefficient_and_no_training_mean_logits_alone(random_weights):
    ids = Tensor(np.arange(8, dtype=np.int32).reshape(1, 8))
    plain = LanguageModel(make(num_experts=3)).set_train(True)
    with_loss = LanguageModel(make(num_experts=3, router_aux_loss_coef=0.1))
    load_weights(with_loss, {name: p.asnumpy() for name, p in named_parameters(plain).items()})

    evaluated = with_loss(ids)
    trained, auxiliary = with_loss.set_train(True)(ids)
    back = with_loss.set_train(False)(ids)

    np.testing.assert_array_equal(plain(ids).asnumpy(), evaluated.asnumpy())
    np.testing.assert_array_equal(trained.asnumpy(), back.asnumpy())
    assert auxiliary.dtype == ms.float32
    assert auxiliary.shape == ()
