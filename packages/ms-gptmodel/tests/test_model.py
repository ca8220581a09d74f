"""The forward pass against an independent float64 reference, packing, types, names."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import ConfigError, LanguageModel, ModelConfig, load_weights, named_parameters, token_loss

TOLERANCE = 1e-5


def call(model, *arrays):
    return model(*(None if a is None else Tensor(a) for a in arrays)).asnumpy()


@pytest.mark.parametrize("family", ["gpt2", "llama", "llama_linear", "llama3", "qwen2", "qwen3", "all_biases", "relu"])
def test_logits_of_packed_rows_equal_the_reference(family, families, model_of, packed, reference):
    model, weights = model_of(family)

    logits = call(model, *packed)

    assert logits.shape == (2, 40, 61)
    np.testing.assert_allclose(logits, reference(families[family], weights, *packed), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["gpt2", "llama3"])
def test_logits_without_positions_and_segments_equal_the_reference(family, families, model_of, packed, reference):
    model, weights = model_of(family)

    expected = reference(families[family], weights, packed[0])

    np.testing.assert_allclose(call(model, packed[0]), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "mutation"),
    [
        ("llama", "interleaved"),
        ("llama", "rotation_sign"),
        ("llama", "group_order"),
        ("llama", "gate_up_swapped"),
        ("llama", "no_scale"),
        ("llama", "no_segments"),
        ("llama", "no_final_norm"),
        ("llama", "eps"),
        ("llama", "activation"),
        ("llama_linear", "no_rope_scaling"),
        ("llama_linear", "query_key_swapped"),
        ("llama3", "no_rope_scaling"),
        ("qwen2", "no_bias"),
        ("qwen3", "no_qk_norm"),
        ("gpt2", "query_key_swapped"),
        ("gpt2", "activation"),
        ("gpt2", "no_mean"),
        ("gpt2", "no_restart"),
        ("all_biases", "activation"),
    ],
)
def test_a_mutated_reference_fails_the_same_gate(family, mutation, families, model_of, packed, reference):
    model, weights = model_of(family)

    mutated = reference(families[family], weights, *packed, mutation=mutation)

    assert np.abs(call(model, *packed) - mutated).max() > 10 * TOLERANCE


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_changing_one_document_leaves_the_other_untouched_to_the_last_bit(family, model_of, packed):
    model, _ = model_of(family)
    ids, positions, segments = packed
    changed = ids.copy()
    changed[0, :33] = (changed[0, :33] + 7) % 61
    changed[1, 32:] = 9

    before, after = call(model, *packed), call(model, changed, positions, segments)

    np.testing.assert_array_equal(before[0, 33:], after[0, 33:])
    np.testing.assert_array_equal(before[1, :32], after[1, :32])
    assert np.abs(before[0, :33] - after[0, :33]).max() > 0.01


def test_a_packed_document_has_the_logits_it_has_alone(model_of, packed):
    model, _ = model_of("llama")
    ids, _, _ = packed
    alone = np.zeros((1, 40), np.int32)
    alone[0, :7] = ids[0, 33:]

    np.testing.assert_allclose(call(model, *packed)[0, 33:], call(model, alone)[0, :7], rtol=0, atol=TOLERANCE)


def test_a_row_of_padding_alone_is_finite_and_changes_nothing(model_of, packed):
    model, _ = model_of("llama")
    ids, positions, segments = (array.copy() for array in packed)
    before = call(model, *packed)[0]
    ids[1], positions[1], segments[1] = 0, 0, 0

    logits = call(model, ids, positions, segments)

    np.testing.assert_array_equal(logits[0], before)
    assert np.isfinite(logits).all()


def test_graph_and_pynative_mode_agree(model_of, packed):
    model, _ = model_of("llama")
    graph = call(model, *packed)

    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        eager = call(model, *packed)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)

    np.testing.assert_allclose(graph, eager, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_half_precision_model_follows_the_full_one(family, families, model_of, packed):
    full, weights = model_of(family)
    half = LanguageModel(ModelConfig.from_mapping(families[family]))
    load_weights(half, weights)
    for parameter in half.get_parameters():
        parameter.set_dtype(ms.float16)

    logits = half(*map(Tensor, packed))

    assert logits.dtype == ms.float16
    np.testing.assert_allclose(logits.asnumpy(), call(full, *packed), rtol=0, atol=0.02)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_half_precision_model_survives_activations_of_300(family, families, packed):
    model = LanguageModel(ModelConfig.from_mapping(families[family]))
    model.embedding.weight.set_data(model.embedding.weight * 300 / 0.02)
    for parameter in model.get_parameters():
        parameter.set_dtype(ms.float16)

    logits = call(model, *packed)

    assert np.isfinite(logits).all()
    assert np.abs(logits).max() > 0.01


def test_positions_of_100000_are_finite_and_right(families, packed, random_weights, reference):
    config = {**families["llama"], "max_position_embeddings": 100_100, "num_hidden_layers": 1}
    model = LanguageModel(ModelConfig.from_mapping(config))
    weights = random_weights(model)
    load_weights(model, weights)
    positions = np.tile(np.arange(100_000, 100_040, dtype=np.int32), (2, 1))

    expected = reference(config, weights, packed[0], positions)

    np.testing.assert_allclose(call(model, packed[0], positions), expected, rtol=0, atol=TOLERANCE)


def test_parameter_names_and_shapes_are_those_of_the_contract(model_of):
    model, _ = model_of("qwen3")

    shapes = {name: tuple(p.shape) for name, p in named_parameters(model).items()}

    block = {
        "attention_norm.weight": (48,),
        "attention.query.weight": (96, 48),
        "attention.key.weight": (48, 48),
        "attention.value.weight": (48, 48),
        "attention.output.weight": (48, 96),
        "attention.query_norm.weight": (16,),
        "attention.key_norm.weight": (16,),
        "mlp_norm.weight": (48,),
        "mlp.gate.weight": (80, 48),
        "mlp.up.weight": (80, 48),
        "mlp.down.weight": (48, 80),
    }
    expected = {f"blocks.{n}.{name}": shape for n in range(2) for name, shape in block.items()}
    expected |= {"embedding.weight": (61, 48), "norm.weight": (48,), "lm_head.weight": (61, 48)}
    assert shapes == expected
    assert [p.name for p in model.get_parameters()] == list(shapes)


def test_names_of_gpt2_include_positions_and_biases_and_no_head(model_of):
    names = set(named_parameters(model_of("gpt2")[0]))

    assert {"position_embedding.weight", "norm.bias", "blocks.1.mlp.up.bias", "blocks.0.attention.output.bias"} <= names
    assert not {"lm_head.weight", "blocks.0.mlp.gate.weight"} & names


def test_names_survive_being_wrapped_twice(families):
    class Wrapper(nn.Cell):
        def __init__(self, inner):
            super().__init__()
            self.network = inner

    model = LanguageModel(ModelConfig.from_mapping(families["llama"]))
    before = named_parameters(model)

    outer = Wrapper(Wrapper(model))

    assert all(name.startswith("network.network.") for name in (p.name for p in outer.get_parameters()))
    after = named_parameters(model)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_local_heads_follow_the_width_of_the_projections(families, packed, random_weights):
    config = ModelConfig.from_mapping({**families["llama"], "num_hidden_layers": 1})
    whole, part = LanguageModel(config), LanguageModel(config)
    weights = random_weights(whole)
    load_weights(whole, weights)
    halves = []
    for half in range(2):
        load_weights(part, weights)
        for name, rows in (("query", 24), ("key", 8), ("value", 8)):
            projection = getattr(part.blocks[0].attention, name)
            own = weights[f"blocks.0.attention.{name}.weight"][half * rows : (half + 1) * rows]
            projection.weight = ms.Parameter(Tensor(own), name="weight")
        columns = weights["blocks.0.attention.output.weight"][:, half * 24 : (half + 1) * 24]
        part.blocks[0].attention.output.weight = ms.Parameter(Tensor(columns.copy()), name="weight")
        halves.append(_attention_rows(part, packed[0]))
        part = LanguageModel(config)

    np.testing.assert_allclose(halves[0] + halves[1], _attention_rows(whole, packed[0]), rtol=0, atol=TOLERANCE)


def _attention_rows(model, ids):
    class Probe(nn.Cell):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def construct(self, ids, positions, allowed):
            rows = self.model.embed(ids, positions)
            mask = self.model.mask(allowed, positions, positions)
            rotation, _ = self.model.rotations(positions, ids.shape[1])
            return self.model.blocks[0].attention(rows, ids.shape[0], rotation, mask)

    positions = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
    allowed = np.tril(np.ones((1, ids.shape[1], ids.shape[1]), bool))
    return Probe(model)(Tensor(ids), Tensor(positions), Tensor(allowed)).asnumpy()


def test_a_row_longer_than_the_model_is_refused(model_of, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # a compile that fails leaves a folder of dumps

    with pytest.raises(ValueError, match="rows of 65 ids, max_position_embeddings is 64"):
        call(model_of("llama")[0], np.zeros((1, 65), np.int32))


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_gradients_equal_finite_differences_of_the_reference(family, families, model_of, packed, reference):
    model, weights = model_of(family)
    ids, positions, segments = (array[:, :12] for array in packed)
    labels = np.roll(ids, -1, 1)
    labels[:, -1] = -100

    class Loss(nn.Cell):
        def __init__(self, model):
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, ids, positions, segments, labels):
            return token_loss(self.model(ids, positions, segments), labels)[0]

    parameters = named_parameters(model)
    grad = ops.value_and_grad(Loss(model), None, list(parameters.values()))
    loss, gradients = grad(*map(Tensor, (ids, positions, segments, labels)))
    gradients = {name: g.asnumpy() for name, g in zip(parameters, gradients, strict=True)}

    def reference_loss(values):
        logits = reference(families[family], values, ids, positions, segments)
        largest = logits.max(-1, keepdims=True)
        log_p = logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
        return -np.take_along_axis(log_p[:, :-1], labels[:, :-1, None].astype(np.int64), -1).sum()

    assert float(loss.asnumpy()) == pytest.approx(reference_loss(weights), rel=1e-6)
    generator = np.random.default_rng(1)
    for name, value in weights.items():
        if name.startswith("blocks.1") and not name.endswith("bias"):
            continue  # the second layer has the code of the first; its biases stay for their own kernels
        direction = generator.standard_normal(value.shape)
        step = 1e-4 / np.abs(direction).max()
        shifted = [{**weights, name: value.astype(np.float64) + s * step * direction} for s in (1, -1)]
        slope = (reference_loss(shifted[0]) - reference_loss(shifted[1])) / (2 * step)
        assert (gradients[name] * direction).sum() == pytest.approx(slope, rel=1e-3, abs=2e-3), name


@pytest.mark.parametrize("family", ["gpt2", "llama"])  # tied, and with a head of its own
def test_rows_that_pad_the_vocabulary_change_nothing_and_take_no_gradient(family, families, model_of, packed):
    plain, weights = model_of(family)
    config = ModelConfig.from_mapping({**families[family], "padded_vocab_size": 64})
    padded = LanguageModel(config, seed=1)
    tables = {name: w for name, w in weights.items() if name in ("embedding.weight", "lm_head.weight")}
    filled = {name: np.concatenate([w, np.full((3, w.shape[1]), 9.0, w.dtype)]) for name, w in tables.items()}
    load_weights(padded, {**weights, **filled})
    labels = Tensor(np.roll(packed[0], -1, 1))

    def loss(*arrays):
        return token_loss(padded(*arrays), labels)[0]

    parameters = named_parameters(padded)
    found = ops.value_and_grad(loss, None, ms.ParameterTuple(parameters.values()))(*map(Tensor, packed))
    gradients = dict(zip(parameters, found[1], strict=True))

    assert call(padded, *packed).shape == (2, 40, 61)
    np.testing.assert_allclose(call(padded, *packed), call(plain, *packed), rtol=0, atol=1e-6)
    for name in filled:
        assert not gradients[name].asnumpy()[61:].any()
        assert gradients[name].asnumpy()[:61].any()


def test_fewer_rows_than_ids_are_refused(families):
    with pytest.raises(ConfigError, match=r"model\.padded_vocab_size: expected vocab_size 61 or more, found 60"):
        ModelConfig.from_mapping({**families["llama"], "padded_vocab_size": 60})
