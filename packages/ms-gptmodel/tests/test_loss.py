"""The loss: a sum and a count, in fp32, with ignored labels."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops
from ms_gptmodel import ConfigError, TokenLoss, token_loss


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((2, 5, 11)) * 3).astype(np.float32)
    labels = generator.integers(0, 11, (2, 5)).astype(np.int32)
    labels[0, 1], labels[1, 3:] = -100, -100
    return logits, labels


def summed_loss(logits, labels):
    return token_loss(logits, labels)[0]


def expected_loss(logits, labels):
    x = logits.astype(np.float64)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return -sum(log_p[i][labels[i]] for i in np.ndindex(labels.shape) if labels[i] != -100)


def test_the_loss_is_the_sum_over_labelled_tokens_and_their_number(rows):
    total, count = token_loss(*map(Tensor, rows))

    assert float(total.asnumpy()) == pytest.approx(expected_loss(*rows), rel=1e-6)
    assert float(count.asnumpy()) == 7
    assert total.shape == count.shape == ()


def test_gradients_are_softmax_minus_label_and_zero_where_ignored(rows):
    logits, labels = rows

    gradient = ops.grad(summed_loss)(Tensor(logits), Tensor(labels)).asnumpy()

    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p[np.arange(2)[:, None], np.arange(5)[None], np.maximum(labels, 0)] -= 1
    np.testing.assert_allclose(gradient, p * (labels != -100)[..., None], rtol=0, atol=1e-6)
    assert (gradient[labels == -100] == 0).all()


def test_all_labels_ignored_gives_zero_loss_zero_count_and_zero_gradient(rows):
    labels = Tensor(np.full((2, 5), -100, np.int32))

    total, count = token_loss(Tensor(rows[0]), labels)
    gradient = ops.grad(summed_loss)(Tensor(rows[0]), labels).asnumpy()

    assert (float(total.asnumpy()), float(count.asnumpy())) == (0, 0)
    assert (gradient == 0).all()


def test_token_id_0_is_a_real_token():
    total, count = token_loss(Tensor(np.zeros((1, 1, 4), np.float32)), Tensor(np.zeros((1, 1), np.int32)))

    assert float(total.asnumpy()) == pytest.approx(np.log(4), rel=1e-5)  # log_softmax on CPU is off by up to 6e-6
    assert float(count.asnumpy()) == 1


def test_half_precision_logits_give_a_full_precision_loss(rows):
    logits = np.tile(rows[0], (1, 400, 1))
    labels = np.tile(rows[1], (1, 400))

    total, _ = token_loss(Tensor(logits, ms.float16), Tensor(labels))

    assert total.dtype == ms.float32
    assert float(total.asnumpy()) == pytest.approx(expected_loss(logits, labels), rel=1e-3)


def test_an_unlikely_label_is_finite():
    logits = Tensor(np.array([[0.0, 5000.0]], np.float32))

    assert float(token_loss(logits, Tensor(np.array([0], np.int32)))[0].asnumpy()) == 5000.0


@pytest.mark.parametrize(("smoothing", "z"), [(0.1, 0.0), (0.0, 1e-2), (0.3, 1e-3)])
def test_label_smoothing_and_z_loss_are_their_formulas(smoothing, z, rows):
    logits, labels = rows
    x = logits.astype(np.float64)
    lse = np.log(np.exp(x).sum(-1))
    even = (lse[..., None] - x).mean(-1)
    expected = sum(
        (1 - smoothing) * (lse[i] - x[i][labels[i]]) + smoothing * even[i] + z * lse[i] ** 2
        for i in np.ndindex(labels.shape)
        if labels[i] != -100
    )

    total, count = TokenLoss(label_smoothing=smoothing, z_loss=z)(*map(Tensor, rows))

    assert float(total.asnumpy()) == pytest.approx(expected, rel=1e-6)
    assert float(count.asnumpy()) == 7


def test_with_all_labels_ignored_the_regularized_loss_is_zero_too(rows):
    loss = TokenLoss(label_smoothing=0.1, z_loss=0.01)
    labels = Tensor(np.full((2, 5), -100, np.int32))

    gradient = ops.grad(loss)(Tensor(rows[0]), labels).asnumpy()

    assert [float(part.asnumpy()) for part in loss(Tensor(rows[0]), labels)] == [0, 0]
    assert (gradient == 0).all()


def test_an_impossible_regularization_is_refused():
    with pytest.raises(ConfigError, match="label_smoothing: expected 0 or more and below 1, found 1"):
        TokenLoss(label_smoothing=1.0)
    with pytest.raises(ConfigError, match="z_loss: expected 0 or more, found -1"):
        TokenLoss(z_loss=-1.0)
