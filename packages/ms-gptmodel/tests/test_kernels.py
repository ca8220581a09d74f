"""The tuned CPU kernels against the plain ones, forward and gradient; the calls of Ascend's by signature and rule."""

import inspect

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import ConfigError, kernels_ascend, kernels_cpu, kernels_plain
from ms_gptmodel.kernels import select

R, WIDTH, OUT = 10, 12, 7


def random(*shape, scale=1.0):
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * scale).astype(np.float32)


class Weighted(nn.Cell):
    """Sum of a kernel's output times fixed weights, so that every output element has its own gradient."""

    def __init__(self, kernel, weights):
        super().__init__()
        self.kernel, self.weights = kernel, Tensor(weights)

    def construct(self, *inputs):
        return (ops.cast(self.kernel(*inputs), ms.float32) * self.weights).sum()


def output_and_gradients(kernel, arrays, dtype=ms.float32):
    inputs = [Tensor(a) if a.dtype != np.float32 else Tensor(a, dtype) for a in arrays]
    output = kernel(*inputs)
    floats = tuple(i for i, a in enumerate(arrays) if a.dtype == np.float32)
    gradients = ops.grad(Weighted(kernel, random(*output.shape)), floats)(*inputs)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    assert output.dtype == dtype or arrays[-1].dtype == np.int32
    assert all(g.dtype == dtype for g in gradients)
    return output.asnumpy().astype(np.float64), [g.asnumpy().astype(np.float64) for g in gradients]


class Rotating(nn.Cell):
    """Rotation by the tables of positions."""

    def __init__(self, kernels, rotary_dim, is_interleaved):
        super().__init__()
        angles = np.arange(10)[:, None] * 0.5 ** np.arange(12)[None]
        self.tables = (Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32))
        self.rows, self.rotate = kernels.RotationRows(), kernels.Rotation(12, rotary_dim, is_interleaved)

    def construct(self, x, positions):
        return self.rotate(x, *self.rows(*self.tables, positions, x.shape[1]))


CASES = {
    "linear": (lambda k: k.Linear(), [random(R, WIDTH), random(OUT, WIDTH)]),
    "biased_linear": (lambda k: k.BiasedLinear(), [random(R, WIDTH), random(OUT, WIDTH), random(OUT)]),
    "rms_norm": (lambda k: k.RMSNorm(1e-5), [random(R, WIDTH), random(WIDTH)]),
    "rms_norm_of_tiny_rows": (lambda k: k.RMSNorm(1e-3), [random(R, WIDTH, scale=0.02), random(WIDTH)]),
    "layer_norm": (lambda k: k.LayerNorm(1e-5), [random(R, WIDTH) + 3, random(WIDTH), random(WIDTH + 0)]),
    **{
        f"{act}": (lambda k, act=act: k.Activation(act), [random(R, WIDTH, scale=3)])
        for act in ("silu", "gelu", "gelu_new", "relu")
    },
    **{
        f"gated_{act}": (lambda k, act=act: k.GatedActivation(act), [random(R, WIDTH, scale=3), random(R, 12) + 1])
        for act in ("silu", "gelu_new")
    },
    **{
        f"rotation_of_{dim}{'_interleaved' * pairs}": (
            lambda k, dim=dim, pairs=pairs: Rotating(k, dim, pairs),
            [random(2, 3, 5, 12), np.arange(10, dtype=np.int32).reshape(2, 5)],
        )
        for dim, pairs in ((12, False), (12, True), (4, False), (8, True))
    },
    **{
        f"token_loss_smoothed_{e}_z_{z}": (
            lambda k, e=e, z=z: k.RegularizedTokenLoss(e, z),
            [random(R, WIDTH, scale=4), np.array([0, -100, 3, 11, -100, 5, 5, 1, 2, 0], np.int32)],
        )
        for e, z in ((0.1, 0.0), (0.0, 0.01), (0.2, 0.05))
    },
    "token_loss": (
        lambda k: k.TokenLoss(),
        [random(R, WIDTH, scale=4), np.array([0, -100, 3, 11, -100, 5, 5, 1, 2, 0], np.int32)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cpu_kernel_equals_the_plain_one_in_output_and_gradients(case):
    make, arrays = CASES[case]

    plain, plain_gradients = output_and_gradients(make(kernels_plain), arrays)
    tuned, tuned_gradients = output_and_gradients(make(kernels_cpu), arrays)

    np.testing.assert_allclose(tuned, plain, rtol=2e-5, atol=2e-6)
    for ours, theirs in zip(tuned_gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["biased_linear", "rms_norm", "layer_norm", "gelu_new", "gated_silu"])
def test_a_cpu_kernel_in_half_precision_follows_full_precision(case):
    make, arrays = CASES[case]

    full, full_gradients = output_and_gradients(make(kernels_cpu), arrays)
    half, half_gradients = output_and_gradients(make(kernels_cpu), arrays, ms.float16)

    np.testing.assert_allclose(half, full, rtol=0.01, atol=0.01 * np.abs(full).max())
    for ours, theirs in zip(half_gradients, full_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0.01, atol=0.01 * np.abs(theirs).max())


def test_the_comparison_sees_a_wrong_backward_pass():
    class Wrong(kernels_cpu.RMSNorm):
        def bprop(self, x, weight, out, dout):
            return dout * weight, ops.zeros_like(weight)

    _, expected = output_and_gradients(kernels_plain.RMSNorm(1e-5), CASES["rms_norm"][1])
    _, wrong = output_and_gradients(Wrong(1e-5), CASES["rms_norm"][1])

    assert all(np.abs(a - b).max() > 0.1 for a, b in zip(wrong, expected, strict=True))


class Attending(nn.Cell):
    """Rotation of queries and keys, then attention, with the masks and tables of one set of kernels."""

    def __init__(self, kernels, head_dim, num_positions, soft_cap=None):
        super().__init__()
        angles = np.arange(num_positions)[:, None] * 0.5 ** np.arange(head_dim // 2)[None]
        angles = np.concatenate([angles, angles], 1)
        self.tables = (Tensor(np.cos(angles), ms.float32), Tensor(np.sin(angles), ms.float32))
        self.rows, self.rotate = kernels.RotationRows(), kernels.Rotation(head_dim, head_dim, False)
        self.attend = kernels.Attention(0.3, soft_cap)
        self.mask = kernels.AttentionMask()

    def construct(self, q, k, v, positions, allowed):
        query = self.rotate(q, *self.rows(*self.tables, positions, q.shape[1]))
        key = self.rotate(k, *self.rows(*self.tables, positions, k.shape[1]))
        return self.attend(query, key, v, self.mask(allowed, q.shape[0], q.shape[1]))


@pytest.mark.parametrize(
    ("heads", "key_heads", "mask_batch", "soft_cap"), [(6, 2, 2, None), (4, 4, 1, 0.5), (3, 1, 2, None)]
)
def test_cpu_attention_equals_the_plain_one_with_grouped_queries(heads, key_heads, mask_batch, soft_cap):
    batch, length, width = 2, 9, 8
    arrays = [random(batch, heads, length, width), *(random(batch, key_heads, length, width, scale=s) for s in (1, 2))]
    positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1)) * 4
    allowed = np.tril(np.random.default_rng(0).random((mask_batch, length, length)) < 0.7)
    allowed[:, 5] = False  # a row that sees nothing

    plain, plain_gradients = output_and_gradients(
        Attending(kernels_plain, width, 40, soft_cap), [*arrays, positions, allowed]
    )
    tuned, tuned_gradients = output_and_gradients(
        Attending(kernels_cpu, width, 40, soft_cap), [*arrays, positions, allowed]
    )

    assert np.isfinite(tuned).all()
    np.testing.assert_allclose(tuned, plain, rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(tuned_gradients, plain_gradients, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=5e-6)


def test_every_set_of_kernels_has_the_same_cells():
    names = {
        name
        for name, value in vars(kernels_plain).items()
        if inspect.isclass(value) and value.__module__.endswith("plain") and not name.startswith("_")
    }

    assert names <= set(kernels_cpu.__all__)
    assert names <= set(kernels_ascend.__all__)
    for name in names:
        for kernels in (kernels_cpu, kernels_ascend):
            ours, plain = (getattr(k, name).construct for k in (kernels, kernels_plain))
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(plain).parameters), name


def test_the_device_target_chooses_the_kernels():
    assert select() is kernels_cpu
    assert select("Ascend") is kernels_ascend
    with pytest.raises(ConfigError, match="kernels 'TPU': unknown; known: plain, CPU, Ascend"):
        select("TPU")
