"""Tests of the early warnings."""

import logging

import pytest
from ms_trainloop.evaluation import Evaluation
from ms_trainloop.loop import train
from ms_trainloop.watch import Watch, find_repetition


def feed(watch, trained, evaluated):
    warnings = []
    for number, (loss, found) in enumerate(zip(trained, evaluated, strict=True), 1):
        watch.look({"kind": "train", "step": number, "loss": loss})
        warnings.append(watch.look({"kind": "evaluation", "step": number, "loss": found}))
    return warnings


def test_overfitting_is_said_once_a_turn():
    warnings = feed(Watch(), [4.0, 3.0, 2.5, 2.0, 1.5, 1.0], [3.9, 3.5, 3.6, 3.8, 4.0, 4.1])

    assert [bool(each) for each in warnings] == [False, False, False, True, False, True]
    assert "from 3.5000 (step 2) to 3.8000 (step 4), while the training loss fell from 3.0000 to 2.0000" in warnings[3]


@pytest.mark.parametrize(
    ("trained", "evaluated"),
    [
        ([4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.5, 2.4]),
        ([4.0, 3.0, 3.5, 4.0], [4.0, 3.0, 3.5, 4.0]),  # both rise: it diverges, it does not overfit
        ([4.0, 3.0, 2.9, 2.8], [3.5, 3.0, 3.001, 3.002]),
    ],
)
def test_a_run_that_does_not_overfit_is_left_in_peace(trained, evaluated):
    assert feed(Watch(), trained, evaluated) == [None] * 4


def test_repetition_is_seen_in_words_and_in_chinese_characters():
    assert "only 8% of the 4-grams of the sample for 'Once'" in find_repetition("Once", "Once" + " upon a time" * 13)
    assert "repetition" in find_repetition("从前", "从前" + "有座山" * 10)
    assert find_repetition("从前", "从前有座山，山里有座庙，庙里有个老和尚在给小和尚讲故事。") is None
    assert find_repetition("a", "a " * 8) is None
    assert (
        find_repetition("", "the quick brown fox jumps over the lazy dog and then runs away from the angry old bear")
        is None
    )


def test_the_loop_warns(lab, tmp_path, caplog):
    losses = iter([2.0, 2.5, 3.0])

    with caplog.at_level(logging.WARNING):
        train(
            lab.make_step(lab.make_config(evaluate_every=4, sample_every=12, learning_rate=0.05)),
            lab.batches_of(lab.make_rows(), 4),
            run_dir=tmp_path,
            progress=None,
            evaluate=lambda: Evaluation(loss=next(losses), perplexity=1.0, tokens=1),
            sample=lambda: [("x", "x" + " ha" * 30)],
        )

    assert "step 12: overfitting: the evaluation loss rose 2 times" in caplog.text
    assert "step 12: repetition: only 4%" in caplog.text
