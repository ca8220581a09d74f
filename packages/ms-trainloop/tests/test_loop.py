"""Tests of the loop: metrics file, evaluation, saving, skipped steps, speed figures."""

import io
import json
import logging
import math
import os
import signal

import jsonschema
import numpy as np
import pytest
from ms_trainloop.errors import BatchError, DivergenceError, Interrupted
from ms_trainloop.evaluation import Evaluation
from ms_trainloop.loop import train


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_line_fits_the_contracts_schema(lab, contracts, tmp_path):
    schema = json.loads((contracts / "metrics" / "metrics.schema.json").read_text())

    train(
        lab.make_step(lab.make_config(log_every=5, evaluate_every=6, sample_every=12)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        evaluate=lambda: Evaluation(loss=2.0, perplexity=math.exp(2), tokens=7, bits_per_byte=1.25),
        sample=lambda: [("从前", "有座山\n")],
        progress=None,
    )

    lines = lines_of(tmp_path)
    for line in lines:
        jsonschema.validate(line, schema)
    assert [(line.get("kind"), line.get("step")) for line in lines[1:]] == [
        ("train", 5),
        ("evaluation", 6),
        ("train", 10),
        ("train", 12),
        ("evaluation", 12),
        ("sample", 12),
    ]
    assert lines[-1]["text"] == "有座山\n"
    assert lines[2]["bits_per_byte"] == 1.25


def test_a_line_holds_the_token_weighted_loss_since_the_last_one(lab, uninterrupted, tmp_path):
    result = train(
        lab.make_step(lab.make_config(log_every=12)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        progress=None,
    )

    steps = uninterrupted["results"].values()
    expected = sum(s.loss_sum for s in steps) / sum(s.tokens for s in steps)
    line = lines_of(tmp_path)[1]
    assert line["loss"] == expected == result.loss
    assert line["tokens"] == sum(s.tokens for s in steps) == result.tokens
    assert line["samples"] == 48


def test_speed_from_a_known_clock_is_exact(lab, tmp_path):
    """A clock that moves half a second at each look: a batch waits from one look to the next."""
    ticks = iter(range(10**6))
    train(
        lab.make_step(),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        progress=None,
        clock=lambda: next(ticks) / 2,
        stop_after=3,
    )

    lines = lines_of(tmp_path)[1:]
    # Between the start of a window and its line lie three looks (1.5 s), one of them between the two of the wait.
    counts = np.diff([0, *[line["tokens"] for line in lines]])
    assert [line["tokens_per_second"] for line in lines] == [count / 1.5 for count in counts]
    assert [line["data_wait"] for line in lines] == [1 / 3] * 3


def test_time_spent_on_evaluation_does_not_count_for_the_speed(lab, tmp_path):
    now = [0.0]

    def evaluate():
        now[0] += 1000.0
        return Evaluation(loss=1.0, perplexity=math.e, tokens=1)

    def batches(samples):
        for batch in lab.batches_of(lab.make_rows(), 4)(samples):
            now[0] += 2.0
            yield batch

    train(
        lab.make_step(lab.make_config(evaluate_every=1)),
        batches,
        run_dir=tmp_path,
        evaluate=evaluate,
        progress=None,
        clock=lambda: now[0],
        stop_after=2,
    )

    trained = [line for line in lines_of(tmp_path) if line.get("kind") == "train"]
    counts = np.diff([0, *[line["tokens"] for line in trained]])
    assert [line["tokens_per_second"] for line in trained] == [count / 2.0 for count in counts]
    assert [line["data_wait"] for line in trained] == [1.0, 1.0]


def test_a_time_limit_saves_and_ends_with_its_code_and_the_run_goes_on(lab, uninterrupted, tmp_path):
    now, checkpointer, results = [0.0], lab.MemoryCheckpointer(), {}
    config = lab.make_config(max_minutes=1.0, save_every=100)

    def on_step(number, result):
        now[0] += 13.0
        results[number] = result

    def go_on():
        source = lab.batches_of(lab.make_rows(), 4)
        options = {"run_dir": tmp_path, "checkpointer": checkpointer, "progress": None, "on_step": on_step}
        return train(lab.make_step(config), source, clock=lambda: now[0], **options)

    with pytest.raises(
        Interrupted, match=r"interrupted by train.max_minutes after step 5 of 12; state saved"
    ) as caught:
        go_on()
    assert (caught.value.code, caught.value.step, list(checkpointer.states)) == (75, 5, [5])
    with pytest.raises(Interrupted, match="after step 10 of 12"):
        go_on()

    assert go_on().is_finished
    assert results == uninterrupted["results"]


def test_a_request_to_stop_in_the_last_step_changes_nothing(lab, tmp_path):
    result = train(
        lab.make_step(lab.make_config(steps=2, warmup_steps=0)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        progress=None,
        on_step=lambda number, _: os.kill(os.getpid(), signal.SIGTERM) if number == 2 else None,
    )

    assert result.is_finished


def spoil(step, lab):
    """Makes every gradient NaN from now on."""
    lab.ops.assign(step.named_parameters["norm.weight"], lab.Tensor(np.full(lab.HIDDEN, np.nan, np.float32)))


def test_skipped_steps_are_counted_named_and_stop_the_run_when_many(lab, tmp_path, caplog):
    step = lab.make_step(lab.make_config(max_skipped_steps=3))
    checkpointer = lab.MemoryCheckpointer()

    with pytest.raises(DivergenceError, match=r"step 4 skipped: .*samples 12 \.\.\. 15 .*3 in a row"):
        train(
            step,
            lab.batches_of(lab.make_rows(), 4),
            run_dir=tmp_path,
            checkpointer=checkpointer,
            progress=None,
            on_step=lambda number, result: spoil(step, lab) if number == 1 else None,
        )

    assert checkpointer.states == {}
    lines = lines_of(tmp_path)[1:]
    assert [line["skipped_steps"] for line in lines] == [0, 1, 2]
    assert [line["loss"] for line in lines[1:]] == [None, None]
    assert lines[2]["tokens"] == lines[0]["tokens"]
    assert "weights unchanged" in caplog.text


def test_batches_that_end_are_asked_for_again_from_the_right_sample(lab, uninterrupted, tmp_path):
    source, asked, results = lab.batches_of(lab.make_rows(), 4), [], {}

    def batches(samples):
        asked.append(samples)
        return [batch for _, batch in zip(range(5), source(samples), strict=False)]

    train(lab.make_step(), batches, run_dir=tmp_path, progress=None, on_step=results.__setitem__)

    assert asked == [0, 20, 40]
    assert results == uninterrupted["results"]


def test_batches_that_are_empty_are_refused(lab, tmp_path):
    with pytest.raises(BatchError, match=r"batches\(0\) gave no batch"):
        train(lab.make_step(), lambda samples: [], run_dir=tmp_path, progress=None)


def test_a_batch_of_the_wrong_size_is_refused_before_training(lab, tmp_path):
    with pytest.raises(BatchError, match=r"input_ids: found shape \[3, 6\], expected \[4, seq_length\]"):
        train(lab.make_step(), lab.batches_of(lab.make_rows(), 3), run_dir=tmp_path, progress=None)


def test_it_saves_when_due_and_at_the_end_once(lab, tmp_path):
    checkpointer, saves = lab.MemoryCheckpointer(), []
    keep = checkpointer.save
    checkpointer.save = lambda step, *state: (saves.append(step), keep(step, *state))

    train(
        lab.make_step(lab.make_config(save_every=4)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        checkpointer=checkpointer,
        progress=None,
        samples_per_epoch=lab.ROWS,
        tokenizer_fingerprint="sha256:1",
        config={"train": {"steps": 12}},
    )

    assert saves == [4, 8, 12]
    values = checkpointer.states[8][1]
    assert {key: values[key] for key in ("samples_consumed", "epoch", "loss_scale", "random_state")} == {
        "samples_consumed": 32,
        "epoch": 3,
        "loss_scale": 1.0,
        "random_state": {"seed": 0},
    }
    assert (values["tokenizer_fingerprint"], values["config"]) == ("sha256:1", {"train": {"steps": 12}})


def test_the_end_waits_for_a_save_beside_the_training_and_raises_what_it_raised(lab, tmp_path):
    class Behind(lab.MemoryCheckpointer):
        """Fails where a saver that writes beside the training does: when it is waited for."""

        waits = 0

        def wait(self):
            self.waits += 1
            if self.waits == 2:
                raise OSError("disk full")

    checkpointer = Behind()
    options = {"run_dir": tmp_path, "checkpointer": checkpointer, "progress": None}
    config = lab.make_config(save_every=2)
    train(lab.make_step(config), lab.batches_of(lab.make_rows(), 4), stop_after=4, **options)

    with pytest.raises(OSError, match="disk full"):
        train(lab.make_step(config), lab.batches_of(lab.make_rows(), 4), **options)

    assert (checkpointer.waits, sorted(checkpointer.states)) == (2, [2, 4, 6, 8, 10, 12])


def test_saved_tensors_are_copies_that_training_does_not_change(uninterrupted):
    first, last = uninterrupted["states"][1][0], uninterrupted["states"][12][0]

    assert not np.array_equal(first["model.lm_head.weight"], last["model.lm_head.weight"])
    np.testing.assert_array_equal(last["model.lm_head.weight"], uninterrupted["weights"]["lm_head.weight"])
    assert sorted(name for name in first if name.endswith("norm.weight")) == [
        "model.norm.weight",
        "optimizer.exp_avg.norm.weight",
        "optimizer.exp_avg_sq.norm.weight",
    ]


def test_another_rank_writes_nothing(lab, tmp_path):
    checkpointer = lab.MemoryCheckpointer()

    train(
        lab.make_step(lab.make_config(steps=2, warmup_steps=0)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        rank=1,
        checkpointer=checkpointer,
        progress=None,
    )

    assert list(tmp_path.iterdir()) == []
    assert checkpointer.states == {}


def test_without_a_terminal_progress_is_plain_lines(lab, tmp_path):
    stream = io.StringIO()

    train(
        lab.make_step(lab.make_config(log_every=6)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        progress=stream,
    )

    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("step 6/12  loss ")
    assert "tok/s" in lines[0]


def test_a_first_loss_far_from_that_of_a_guess_is_reported(lab, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        train(
            lab.make_step(),
            lab.batches_of(lab.make_rows(), 4),
            run_dir=tmp_path,
            progress=None,
            vocab_size=10**6,
            stop_after=1,
        )

    assert "expected about ln(1000000) = 13.82" in caplog.text


def test_tensorboard_event_files_hold_the_same_numbers(lab, tmp_path):
    train(
        lab.make_step(lab.make_config(steps=2, warmup_steps=0, tensorboard=True)),
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        progress=None,
    )

    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert content.count(b"train/loss\x15") == 2
    assert b"train/tokens_per_second" in content
    assert b"train/mfu" not in content
