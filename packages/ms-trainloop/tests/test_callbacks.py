"""Tests of the callbacks inside the stock `mindspore.Model.train`."""

import json
from itertools import islice

import jsonschema
import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset
from ms_trainloop import EvaluationCallback, Evaluator, ForensicsCallback, MetricsCallback, read_metrics
from ms_trainloop.errors import ConfigError
from ms_trainloop.loss import SummedCrossEntropy

KEYS = ["input_ids", "labels", "position_ids", "segment_ids"]


class MeanLoss(nn.Cell):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = SummedCrossEntropy()

    def construct(self, input_ids, labels, position_ids, segment_ids):
        loss_sum, count = self.loss(self.model(input_ids, position_ids, segment_ids), labels)
        return loss_sum / ops.maximum(count, 1.0)


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


def fit(network, batches, callbacks, *, epochs=1, rate=0.05):
    columns = [tuple(batch[key] for key in KEYS) for batch in batches]
    dataset = GeneratorDataset(columns, KEYS, shuffle=False)
    optimizer = nn.SGD(network.trainable_params(), rate)
    mindspore.Model(network, optimizer=optimizer).train(epochs, dataset, callbacks=callbacks, dataset_sink_mode=False)


def test_metrics_and_evaluations_of_a_stock_run_are_those_of_its_weights(lab, graph_mode, contracts, tmp_path):
    model = lab.LinearModel()
    network = MeanLoss(model)
    batches = list(islice(lab.batches_of(lab.make_rows(), 4)(0), 5))
    held_out = [lab.make_batch(lab.make_rows(6, seed=9))]
    evaluator, seen = Evaluator(model), []

    def evaluate():
        seen.append(np.array(model.head.asnumpy()))
        return evaluator(held_out)

    metrics = MetricsCallback(tmp_path, log_every=2)
    evaluation = EvaluationCallback(evaluate, every=4, metrics=metrics)
    fit(network, batches, [metrics, evaluation], epochs=2, rate=1.0)

    lines = read_metrics(tmp_path)
    train = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in train] == [2, 4, 6, 8, 10]
    counts = [int((batch["labels"] >= 0).sum()) for batch in batches * 2]
    assert [line["tokens"] for line in train] == np.cumsum(counts)[1::2].tolist()
    assert [line["samples"] for line in train] == [8, 16, 24, 32, 40]
    assert {line["learning_rate"] for line in train} == {1.0}
    schema = json.loads((contracts / "metrics" / "metrics.schema.json").read_text())
    for line in lines:
        jsonschema.validate(line, schema)

    fresh = Evaluator(lab.LinearModel())(held_out).loss
    assert abs(evaluation.evaluations[10].loss - fresh) > 1e-3, "training moved the weights"
    written = {line["step"]: line["loss"] for line in lines if line["kind"] == "evaluation"}
    assert list(written) == list(evaluation.evaluations) == [4, 8, 10]
    for weight, loss in zip(seen, written.values(), strict=True):
        ids, labels = held_out[0]["input_ids"].ravel(), held_out[0]["labels"].ravel()
        logits = weight[ids].astype(np.float64)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids)), np.maximum(labels, 0)]
        assert loss == pytest.approx(losses[labels >= 0].mean(), rel=1e-6)


def test_the_window_is_weighted_by_labels(lab, graph_mode, tmp_path):
    batches = [lab.make_batch(lab.make_rows(4, seed=seed)) for seed in (1, 2)]
    batches[0]["labels"][1:] = -100
    network = MeanLoss(lab.LinearModel())
    expected = [Evaluator(network.model)([batch]) for batch in batches]

    fit(network, batches, [MetricsCallback(tmp_path, log_every=2)], rate=1e-30)

    (line,) = read_metrics(tmp_path)
    total = sum(each.loss * each.tokens for each in expected) / sum(each.tokens for each in expected)
    assert line["loss"] == pytest.approx(total, rel=1e-6)
    assert abs(line["loss"] - (expected[0].loss + expected[1].loss) / 2) > 1e-4


@pytest.mark.parametrize("kind", ["exp", "sqrt"])
def test_the_first_step_that_breaks_is_recorded_undone_and_ends_the_run(lab, graph_mode, tmp_path, kind):
    """`exp` has a loss that is not finite; `sqrt` a finite loss, and weights that are not after the step."""
    network = MeanLoss(lab.FragileModel(kind))
    source = lab.trapped_batches(lab.make_rows(), 4, [10])(0)
    batches = list(islice(source, 5))
    twin = MeanLoss(lab.FragileModel(kind))
    fit(twin, batches[:2], [])
    forensics = ForensicsCallback(tmp_path, network)

    fit(network, batches, [forensics], rate=0.05)

    assert forensics.folder == tmp_path / "forensics" / "step-00000003"
    report = json.loads((forensics.folder / "report.json").read_text())
    assert (report["step"], report["learning_rate"]) == (3, pytest.approx(0.05))
    with np.load(forensics.folder / "batch.npz") as batch:
        np.testing.assert_array_equal(batch["column_0"], batches[2]["input_ids"])
    if kind == "exp":
        assert report["loss"] is None
        assert report["diagnosis"]["forward"]["cell"] == "model.steep"
        assert report["diagnosis"]["forward"]["source"] == "grown = ops.exp(x)"
    else:
        assert report["loss"] > 0
        assert report["diagnosis"]["forward"] is None
        assert report["diagnosis"]["backward"]["kind"] == "Steep"
        assert report["weights_after"] == ["model.embedding.embedding_table"]
    for mine, other in zip(network.trainable_params(), twin.trainable_params(), strict=True):
        np.testing.assert_array_equal(mine.asnumpy(), other.asnumpy())


def test_what_callbacks_cannot_see_is_refused(lab, graph_mode, tmp_path):
    network = MeanLoss(lab.LinearModel())
    with pytest.raises(ConfigError, match="log_every: found 0, expected 1 or more"):
        MetricsCallback(tmp_path, log_every=0)
    with pytest.raises(ConfigError, match="every: found 0"):
        EvaluationCallback(lambda: None, every=0)
    dataset = GeneratorDataset([tuple(lab.make_batch(lab.make_rows(4))[key] for key in KEYS)], KEYS)
    training = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(ConfigError, match="Model: found no optimizer"):
        mindspore.Model(training).train(1, dataset, callbacks=[MetricsCallback(tmp_path)], dataset_sink_mode=False)
