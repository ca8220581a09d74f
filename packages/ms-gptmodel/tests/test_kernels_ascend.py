"""The calls of Ascend's fused operators, by signature and shape rule: no test executes an operator of Ascend.

Where an operator is called, a stand-in takes its place that checks what MindSpore 2.10 documents (shapes, types,
layouts, the rules of each mode) and computes what it documents, in numpy.
"""

import inspect

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops
from ms_gptmodel import LanguageModel, ModelConfig, kernels, kernels_ascend, kernels_plain, load_weights


def random(*shape, scale=1.0):
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * scale).astype(np.float32)


@pytest.fixture(autouse=True)
def _pynative_mode():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


def test_the_fused_operators_of_ascend_have_the_signatures_that_we_call():
    fused = {
        ops.rms_norm: ["x", "gamma", "epsilon"],
        ops.swiglu: ["input", "dim"],
        ops.rotary_position_embedding: ["x", "cos", "sin", "mode"],
        ops.flash_attention_score: ["query", "key", "value", "head_num"],
    }

    for operator, names in fused.items():
        assert list(inspect.signature(operator).parameters)[: len(names)] == names
    flash = inspect.signature(ops.flash_attention_score).parameters
    assert {"attn_mask", "scalar_value", "input_layout"} <= set(flash)


def test_shapes_that_ascends_fused_operators_refuse_take_the_plain_way():
    assert kernels_ascend.fits_flash_attention(ms.bfloat16, 32, 128)
    assert not kernels_ascend.fits_flash_attention(ms.float32, 32, 128)
    assert not kernels_ascend.fits_flash_attention(ms.float16, 32, 100)
    assert kernels_ascend.fits_fused_rotation(8, 32, 4096, 128, False)
    assert not kernels_ascend.fits_fused_rotation(8, 32, 1, 128, False)
    assert not kernels_ascend.fits_fused_rotation(8, 32, 4096, 128, True)
    assert kernels_ascend.fits_fused_rotation(1, 32, 4096, 128, True)


def test_ascends_attention_in_full_precision_equals_the_plain_one():
    batch, heads, length, width = 2, 4, 6, 8
    arrays = [random(batch, heads, length, width, scale=s) for s in (1, 2, 3)]
    allowed = np.tril(np.ones((1, length, length), bool))
    outputs = []
    for cells in (kernels_plain, kernels_ascend):
        mask = cells.AttentionMask()(Tensor(allowed), batch, heads)
        outputs.append(cells.Attention(0.3)(*map(Tensor, arrays), mask).asnumpy())

    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=1e-6)


def bound(operator, args, options):
    """Arguments by name, as the real operator's signature binds them."""
    arguments = inspect.signature(operator).bind(*args, **options)
    arguments.apply_defaults()
    return arguments.arguments


@pytest.fixture
def fused(monkeypatch):
    """Puts stand-ins in place of the four operators; gives the names of those that were called."""
    called = []
    flash, norm, swiglu, rotary = (
        ops.flash_attention_score, ops.rms_norm, ops.swiglu, ops.rotary_position_embedding,
    )  # fmt: skip

    def flash_attention_score(*args, **options):
        a = bound(flash, args, options)
        q, k, v = a["query"], a["key"], a["value"]
        assert q.dtype == k.dtype == v.dtype
        assert q.dtype in (ms.float16, ms.bfloat16)
        assert not any(a[key] is not None for key in ("real_shift", "drop_mask", "padding_mask", "prefix"))
        heads, mask = a["head_num"], a["attn_mask"]
        assert mask.dtype in (ms.bool_, ms.uint8)
        hidden = mask.asnumpy().astype(bool)
        if a["input_layout"] == "TND":
            called.append("flash_attention_score TND")
            ends = a["actual_seq_qlen"].asnumpy()
            np.testing.assert_array_equal(ends, a["actual_seq_kvlen"].asnumpy())
            assert (ends.dtype, ends[-1], a["next_tokens"], a["sparse_mode"]) == (np.int64, q.shape[0], 0, 3)
            assert (np.diff(ends, prepend=0) > 0).all()  # "0 should not exist in list_seq_k"
            assert len(ends) <= 1024
            assert mask.shape == (2048, 2048)
            assert q.shape[1] == heads
            assert a["pre_tokens"] >= np.diff(ends, prepend=0).max()
            rows = [(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
            out = np.concatenate([
                softmax_attention(*(x.asnumpy()[s:e].transpose(1, 0, 2) for x in (q, k, v)), hidden[: e - s, : e - s],
                                  a["scalar_value"]).transpose(1, 0, 2)
                for s, e in rows
            ])  # fmt: skip
        else:
            called.append("flash_attention_score BNSD")
            assert (a["input_layout"], a["sparse_mode"], a["actual_seq_qlen"]) == ("BNSD", 0, None)
            batch, num, length, _ = q.shape
            assert num == heads
            assert mask.shape == (batch, 1, length, k.shape[2])
            out = np.stack([
                softmax_attention(*(x.asnumpy()[b] for x in (q, k, v)), hidden[b, 0], a["scalar_value"])
                for b in range(batch)
            ])  # fmt: skip
        assert out.shape == q.shape
        return Tensor(out.astype(np.float32)).astype(q.dtype)

    def rms_norm(*args, **options):
        a = bound(norm, args, options)
        called.append("rms_norm")
        x, gamma = a["x"], a["gamma"]
        assert x.dtype == gamma.dtype
        assert gamma.ndim <= x.ndim
        assert 0 < a["epsilon"] <= 1
        values = x.asnumpy().astype(np.float64)
        inverse = 1 / np.sqrt((values**2).mean(-1, keepdims=True) + a["epsilon"])
        return Tensor(values * inverse * gamma.asnumpy(), x.dtype), Tensor(inverse, ms.float32)

    def gated(*args, **options):
        a = bound(swiglu, args, options)
        called.append("swiglu")
        assert a["input"].shape[a["dim"]] % 2 == 0
        first, second = np.split(a["input"].asnumpy().astype(np.float64), 2, a["dim"])
        return Tensor(first / (1 + np.exp(-first)) * second, a["input"].dtype)

    def rotary_position_embedding(*args, **options):
        a = bound(rotary, args, options)
        called.append("rotary_position_embedding")
        x, cosines, sines = a["x"], a["cos"], a["sin"]
        batch, heads, length, width = x.shape
        assert x.dtype == cosines.dtype == sines.dtype
        assert width < 896
        assert width % 2 == 0
        assert batch < 1000
        assert heads < 1000
        allowed = [(1, 1, length, width)] + [(batch, 1, length, width), x.shape] * (a["mode"] == 0)
        assert cosines.shape in allowed
        assert sines.shape == cosines.shape
        values = x.asnumpy()
        if a["mode"] == 0:
            first, second = np.split(values, 2, -1)
            turned = np.concatenate([-second, first], -1)
        else:
            turned = np.stack([-values[..., 1::2], values[..., ::2]], -1).reshape(values.shape)
        return Tensor(values * cosines.asnumpy() + turned * sines.asnumpy())

    for stand_in, name in (
        (flash_attention_score, "flash_attention_score"), (rms_norm, "rms_norm"), (gated, "swiglu"),
        (rotary_position_embedding, "rotary_position_embedding"),
    ):  # fmt: skip
        monkeypatch.setattr(ops, name, stand_in)
    return called


def softmax_attention(q, k, v, hidden, scale):
    """[N, T, D], [K, S, D], [K, S, D], hidden [T, S] -> [N, T, D], in float64."""
    k, v = (np.repeat(x.astype(np.float64), q.shape[0] // k.shape[0], 0) for x in (k, v))
    scores = np.where(hidden, -1e30, q.astype(np.float64) @ k.transpose(0, 2, 1) * scale)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("segments", [
    [[1] * 5 + [2] * 3, [1] * 6 + [0] * 2], [[1, 2, 3, 4, 5, 6, 7, 0], [1] * 8], [[0] * 8, [1] * 8],
])  # fmt: skip
def test_documents_end_where_the_segment_changes_or_the_row_ends(segments):
    segments = np.array(segments, np.int32)
    flat = [(row, segment) for row in range(2) for segment in segments[row]]
    expected = [i + 1 for i in range(16) if i == 15 or flat[i] != flat[i + 1]]

    ends = kernels_ascend.DocumentEnds(16)(Tensor(segments), Tensor(segments))
    whole = kernels_ascend.DocumentEnds(16)(Tensor(segments), None)

    assert ends.dtype == whole.dtype == ms.int64
    np.testing.assert_array_equal(whole.asnumpy(), [8, 16])
    np.testing.assert_array_equal(ends.asnumpy(), expected)


def test_documents_end_at_the_same_places_in_a_graph():
    segments = Tensor(np.array([[1, 1, 2, 0], [1, 2, 2, 2]], np.int32))
    ms.set_context(mode=ms.GRAPH_MODE)

    np.testing.assert_array_equal(kernels_ascend.DocumentEnds(16)(segments, segments).asnumpy(), [2, 3, 4, 5, 8])


SIZES = {
    "vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 64,
}  # fmt: skip
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
HALF = {"rms_norm", "swiglu"}
PATHS = {
    "llama": ({}, HALF | {"flash_attention_score TND", "rotary_position_embedding"}),
    "windows": (WINDOWS, HALF | {
        "flash_attention_score BNSD", "flash_attention_score TND", "rotary_position_embedding",
    }),
    "neighbours": ({"rope_interleaved": True}, HALF | {"flash_attention_score TND"}),  # two rows: two tables
    "part of a head": (
        {"partial_rotary_factor": 0.5}, HALF | {"flash_attention_score TND", "rotary_position_embedding"},
    ),
    "encoder": ({"is_causal": False}, HALF | {"flash_attention_score BNSD", "rotary_position_embedding"}),
    "soft caps": ({"attn_logit_softcapping": 20.0}, HALF | {"rotary_position_embedding"}),
    "alibi": ({"position_kind": "alibi"}, HALF),
    "odd head": ({"head_dim": 12}, HALF | {"rotary_position_embedding"}),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_model_with_ascends_kernels_calls_them_as_documented_and_computes_the_same(
    path, is_packed, fused, packed, random_weights, monkeypatch
):
    keys, expected = PATHS[path]
    config = ModelConfig.from_mapping(SIZES | keys)
    inputs = [Tensor(array) for array in (packed if is_packed else packed[:1])]
    logits, weights = {}, None
    for name in ("plain", "Ascend"):
        monkeypatch.setitem(kernels._BY_NAME, "CPU", kernels.select(name))
        model = LanguageModel(config)
        weights = weights or random_weights(model)
        load_weights(model, weights)
        for parameter in model.get_parameters():
            parameter.set_dtype(ms.float16)
        logits[name] = model(*inputs).asnumpy().astype(np.float32)

    assert set(fused) == expected
    np.testing.assert_allclose(logits["Ascend"], logits["plain"], rtol=0, atol=0.01)


def test_the_stand_in_sees_a_wrong_call(fused):
    x = Tensor(np.zeros((6, 2, 16), np.float16))
    mask, ends = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1)), Tensor(np.array([4, 4, 6]))
    options = {"attn_mask": mask, "input_layout": "TND", "next_tokens": 0, "sparse_mode": 3}

    with pytest.raises(AssertionError):  # an empty document
        ops.flash_attention_score(x, x, x, 2, actual_seq_qlen=ends, actual_seq_kvlen=ends, **options)
    with pytest.raises(TypeError):
        ops.flash_attention_score(x, x, x, 2, actual_seq_len=ends, **options)
    tables = Tensor(np.zeros((2, 1, 3, 16), np.float32))
    with pytest.raises(AssertionError):  # interleaved, a table for each row
        ops.rotary_position_embedding(Tensor(np.zeros((2, 4, 3, 16), np.float32)), tables, tables, 1)
