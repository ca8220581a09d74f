"""Tests of evaluation: the same number for any batch size, and no trace left in the model."""

import math

import mindspore
import numpy as np
import pytest
from ms_trainloop.errors import BatchError
from ms_trainloop.evaluation import Evaluator, evaluate


def cut(lab, batch_size):
    """Six rows, of which some have 2 labels and some 6; the last batch is filled with masked rows."""
    batch = lab.make_batch(np.random.default_rng(9).integers(1, lab.VOCAB, (6, lab.SEQ + 1)))
    batch["labels"][::2, 2:] = -100
    batch["labels"][1, 3] = 0  # id 0 is a real token
    filled = -(-6 // batch_size) * batch_size
    rows = {}
    for key, value in batch.items():
        rows[key] = np.full((filled, lab.SEQ), -100 if key == "labels" else 0, np.int32)
        rows[key][:6] = value
    return [{k: v[i : i + batch_size] for k, v in rows.items()} for i in range(0, filled, batch_size)]


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.mark.usefixtures("graph_mode")
def test_perplexity_is_the_same_for_every_batch_size(lab):
    model = lab.TinyModel()

    found = {size: evaluate(model, cut(lab, size)) for size in (1, 2, 4, 6)}

    assert {each.tokens for each in found.values()} == {3 * 2 + 3 * 6}
    losses = [each.loss for each in found.values()]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    assert found[1].perplexity == math.exp(found[1].loss)


@pytest.mark.usefixtures("graph_mode")
def test_a_mean_of_batch_means_would_be_seen(lab):
    model = lab.TinyModel()

    right = evaluate(model, cut(lab, 1)).loss

    wrong = np.mean([evaluate(model, [batch]).loss for batch in cut(lab, 1)])
    assert abs(wrong - right) > 1e-3


@pytest.mark.usefixtures("graph_mode")
def test_two_ranks_count_as_one_set(lab):
    model = lab.TinyModel()
    batches = cut(lab, 2)
    alone = evaluate(model, batches)

    both = evaluate(model, batches, all_reduce=lambda tensor: tensor + tensor)

    assert both.tokens == 2 * alone.tokens
    assert both.loss == pytest.approx(alone.loss, rel=1e-12)


@pytest.mark.usefixtures("graph_mode")
def test_the_limit_counts_batches(lab):
    batches = cut(lab, 2)

    assert evaluate(lab.TinyModel(), batches, limit=1) == evaluate(lab.TinyModel(), batches[:1])


@pytest.mark.usefixtures("graph_mode")
def test_a_set_without_labels_is_refused(lab):
    with pytest.raises(BatchError, match="found no label"):
        evaluate(lab.TinyModel(), [])
    batch = cut(lab, 6)[0]
    with pytest.raises(BatchError, match="found no label"):
        evaluate(lab.TinyModel(), [{**batch, "labels": np.full_like(batch["labels"], -100)}])


@pytest.mark.usefixtures("graph_mode")
def test_dropout_is_off_and_every_training_flag_comes_back(lab):
    model = lab.OtherModel()
    model.set_train(True)
    model.frozen.set_train(False)
    evaluator = Evaluator(model)

    with_dropout_off = evaluator(cut(lab, 2))

    assert with_dropout_off.loss == evaluate(model.inner, cut(lab, 2)).loss
    assert (model.training, model.frozen.training, model.open.training) == (True, False, True)
    with pytest.raises(KeyError):
        evaluator([{"labels": np.zeros((1, 2), np.int32)}])
    assert (model.training, model.frozen.training, model.open.training) == (True, False, True)


def test_evaluating_between_steps_changes_no_number_and_compiles_nothing_again(lab):
    plain, disturbed = lab.make_step(), lab.make_step()
    evaluator = Evaluator(disturbed.model)
    for _, batch in zip(range(3), lab.batches_of(lab.make_rows(), 4)(0), strict=False):
        assert plain.run(batch) == disturbed.run(batch)
        evaluator([batch])

    assert len(disturbed.compile_cache) == 1
    assert len(evaluator._losses.compile_cache) == 1


@pytest.mark.usefixtures("graph_mode")
def test_bits_per_byte_do_not_depend_on_batches_or_ranks(lab):
    model, token_bytes = lab.TinyModel(), np.arange(lab.VOCAB) % 5
    labels = cut(lab, 6)[0]["labels"]
    num_bytes = int(token_bytes[labels[labels >= 0]].sum())

    found = [evaluate(model, cut(lab, size), token_bytes=token_bytes) for size in (1, 4)]
    doubled = evaluate(model, cut(lab, 2), token_bytes=token_bytes, all_reduce=lambda tensor: tensor + tensor)

    expected = found[0].loss * found[0].tokens / math.log(2) / num_bytes
    for each in (*found, doubled):
        assert each.bits_per_byte == pytest.approx(expected, rel=1e-6)
    assert evaluate(model, cut(lab, 2)).bits_per_byte is None
