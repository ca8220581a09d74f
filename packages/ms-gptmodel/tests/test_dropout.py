"""Dropout without state: its statistics, its place in the model, and the same masks after a restart."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import CachedDecoder, LanguageModel, ModelConfig, dropout, load_weights, named_parameters
from ms_gptmodel.dropout import Dropout, ForwardCounter

ROWS, WIDTH, RATE = 128, 256, 0.3
RATES = {"embedding_dropout": 0.2, "residual_dropout": 0.2, "attention_dropout": 0.3, "dropout_seed": 11}


@pytest.fixture(scope="module")
def masks():
    """Masks [call, place, ROWS, WIDTH] as 0 and 1 of 6 calls and 8 places; sets no mode, counts 1 call each."""

    class Draw(nn.Cell):
        def __init__(self):
            super().__init__()
            self.counter, self.drop = ForwardCounter(8, 5, 0), Dropout(RATE)

        def construct(self, x):
            keys = self.counter()
            drawn = []
            for place in range(8):
                drawn.append(self.drop(x, keys[2 * place], keys[2 * place + 1]))
            return ops.stack(drawn)

    draw, ones = Draw(), Tensor(np.ones((ROWS, WIDTH), np.float32))
    drawn = np.stack([draw(ones).asnumpy() for _ in range(6)])
    assert set(np.unique(drawn)) == {0.0, np.float32(1 / (1 - RATE))}
    return (drawn > 0).astype(np.float64)


def test_the_share_that_is_kept_is_one_minus_the_rate_everywhere(masks):
    error = np.sqrt(RATE * (1 - RATE) / (ROWS * WIDTH))

    assert np.abs(masks.mean((2, 3)) - (1 - RATE)).max() < 4.5 * error
    assert np.abs(masks.mean((0, 1, 3)) - (1 - RATE)).max() < 4.5 * np.sqrt(RATE * (1 - RATE) / (48 * WIDTH))
    assert np.abs(masks.mean((0, 1, 2)) - (1 - RATE)).max() < 4.5 * np.sqrt(RATE * (1 - RATE) / (48 * ROWS))


def test_masks_of_calls_places_and_neighbours_are_independent(masks):
    flat = masks.reshape(48, -1)
    correlation = np.corrcoef(flat)[np.triu_indices(48, 1)]
    neighbours = [np.corrcoef(masks[0, 0][a].ravel(), masks[0, 0][b].ravel())[0, 1] for a, b in _NEIGHBOURS]
    pairs = flat[0] + 2 * flat[1] + 4 * flat[2]
    joint = np.bincount(pairs.astype(int), minlength=8) / flat.shape[1]

    assert np.abs(correlation).max() < 4.5 / np.sqrt(ROWS * WIDTH)
    assert np.abs(neighbours).max() < 4.5 / np.sqrt(ROWS * WIDTH)
    keep = np.array([RATE, 1 - RATE])
    np.testing.assert_allclose(joint, [keep[i & 1] * keep[i >> 1 & 1] * keep[i >> 2] for i in range(8)], atol=0.012)


_NEIGHBOURS = (
    (np.s_[:, 1:], np.s_[:, :-1]),
    (np.s_[1:], np.s_[:-1]),
    (np.s_[1:, 1:], np.s_[:-1, :-1]),
)


def test_seeds_and_ranks_draw_other_numbers_and_the_first_of_a_pair_is_odd():
    draws = [ForwardCounter(4, seed, rank)().asnumpy() for seed, rank in ((0, 0), (0, 0), (1, 0), (0, 1))]

    np.testing.assert_array_equal(draws[0], draws[1])
    assert len({number for draw in draws[1:] for number in draw.tolist()}) == 24
    assert all((draw[::2] & 1 == 1).all() for draw in draws)


def test_the_counter_wraps_around():
    counter = ForwardCounter(1, 0, 0)
    counter.forward.set_data(Tensor(2**31 - 1, ms.int32))

    counter()

    assert int(counter.forward.asnumpy()) == -(2**31)


def test_an_array_larger_than_the_table_is_cut_into_blocks_with_other_masks(monkeypatch):
    monkeypatch.setattr(dropout, "_LARGEST_TABLE", 1024)
    drop, x = Dropout(0.5), Tensor(np.ones((48, 64), np.float32))
    factor, addend = Tensor(12345 * 2 + 1, ms.int32), Tensor(-77, ms.int32)

    kept = drop(x, factor, addend).asnumpy() > 0
    gradient = ops.grad(drop)(x, factor, addend).asnumpy() > 0

    np.testing.assert_array_equal(kept, gradient)
    blocks = kept.reshape(3, -1).astype(float)
    assert np.abs(np.corrcoef(blocks)[np.triu_indices(3, 1)]).max() < 0.14
    assert np.abs(blocks.mean(1) - 0.5).max() < 0.07


class Loss(nn.Cell):
    """A loss that every logit moves."""

    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, ids):
        logits = self.model(ids)
        return (logits * logits).mean()


def trained_pieces(config, weights, counts, is_recomputed=False):
    """Losses and gradients of calls number `counts`, each from a model that was just restored."""
    model = LanguageModel(ModelConfig.from_mapping(config))
    load_weights(model, weights)
    loss = Loss(model).set_train(True)
    if is_recomputed:
        model.recompute_blocks()
    parameters = [p for p in named_parameters(model).values() if p.requires_grad]
    step = ops.value_and_grad(loss, None, parameters)
    ids = Tensor(np.arange(24, dtype=np.int32).reshape(2, 12))
    pieces = []
    for count in counts:
        ops.assign(model.counter.forward, Tensor(count, ms.int32))
        value, gradients = step(ids)
        pieces.append((value.asnumpy().copy(), [g.asnumpy().copy() for g in gradients]))
        assert int(model.counter.forward.asnumpy()) == count + 1
    return pieces


def equal(first, second):
    return first[0] == second[0] and all(np.array_equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.slow
def test_calls_repeat_bit_for_bit_after_a_restart_and_under_recompute(families, model_of):
    config, (_, weights) = {**families["llama"], **RATES}, model_of("llama")
    whole = trained_pieces(config, weights, [0, 1, 2])

    resumed = trained_pieces(config, weights, [2])
    recomputed = trained_pieces(config, weights, [1], is_recomputed=True)

    assert equal(whole[2], resumed[0])
    assert equal(whole[1], recomputed[0])
    assert whole[0][0] != whole[1][0] != whole[2][0]


def test_both_modes_draw_the_same_masks(families, model_of):
    config, (_, weights) = {**families["gpt2"], **RATES, "num_hidden_layers": 1}, model_of("gpt2")
    weights = {name: value for name, value in weights.items() if not name.startswith("blocks.1")}
    graph = trained_pieces(config, weights, [3])[0]
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        eager = trained_pieces(config, weights, [3])[0]
        again = trained_pieces(config, weights, [3])[0]
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)

    assert equal(eager, again)
    assert graph[0] == pytest.approx(eager[0], rel=1e-6)  # one other mask would be seen in the third digit


@pytest.mark.slow
def test_dropout_is_off_in_evaluation_and_in_the_cached_call(families, model_of):
    plain, weights = model_of("gpt2")
    model = LanguageModel(ModelConfig.from_mapping({**families["gpt2"], **RATES}))
    load_weights(model, weights)
    ids = Tensor(np.arange(20, dtype=np.int32).reshape(2, 10))

    evaluated = model(ids).asnumpy()
    prompt = [Tensor(np.array(value, np.int32)) for value in ([[3, 4, 5, 6]], [4], [0])]
    cached = CachedDecoder(model, slots=2, max_length=8).prefill(*prompt).asnumpy()

    np.testing.assert_array_equal(evaluated, plain(ids).asnumpy())
    np.testing.assert_array_equal(cached, CachedDecoder(plain, slots=2, max_length=8).prefill(*prompt).asnumpy())
    assert int(model.counter.forward.asnumpy()) == 0
    model.set_train(True)
    assert np.abs(model(ids).asnumpy() - evaluated).max() > 0.01
    assert int(named_parameters(model)["counter.forward"].asnumpy()) == 1
    model.set_train(False)
    np.testing.assert_array_equal(model(ids).asnumpy(), evaluated)


def test_rates_of_zero_make_no_counter(families):
    config = {**families["gpt2"], "residual_dropout": 0.0, "dropout_seed": 9}

    assert LanguageModel(ModelConfig.from_mapping(config)).counter is None
