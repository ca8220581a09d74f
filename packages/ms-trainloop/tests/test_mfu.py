"""Tests of the utilization: by hand, said once, and never without a known peak."""

import io

import pytest
from ms_trainloop.errors import ConfigError
from ms_trainloop.metrics import read_metrics
from ms_trainloop.mfu import known_peak


def test_the_utilization_is_the_formula_and_is_said_with_its_peak(lab, tmp_path):
    out = io.StringIO()
    config = lab.make_config(peak_tflops=1e-6, steps=3)

    lab.train(
        lab.make_step(config), lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path, progress=out, flops_per_token=5.0
    )

    assert "5 FLOPs a token / (1 ranks * 1e-06 TFLOPS); peak: train.peak_tflops" in out.getvalue()
    for line in read_metrics(tmp_path):
        assert line["mfu"] == pytest.approx(line["tokens_per_second"] * 5.0 / 1e6)


def test_without_a_known_peak_or_known_work_there_is_no_utilization(lab, tmp_path):
    for number, (peak, flops) in enumerate([(0.0, 5.0), (1.0, None)]):
        lab.train(
            lab.make_step(lab.make_config(peak_tflops=peak, steps=2, warmup_steps=1)),
            lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path / str(number), progress=None, flops_per_token=flops,
        )  # fmt: skip
        assert {line["mfu"] for line in read_metrics(tmp_path / str(number))} == {None}


def test_a_peak_is_that_of_the_device_in_half_precision_only(lab):
    half, whole = lab.make_config(precision="float16"), lab.make_config()

    assert known_peak(half, "Ascend910A")[0] == 256.0
    assert known_peak(half, "Ascend910B3") is None  # no sheet of the maker was found
    assert known_peak(whole, "Ascend910A") is None
    assert known_peak(half, "Ascend999") is None
    assert known_peak(lab.make_config(peak_tflops=7.0), "CPU") == (7.0, "train.peak_tflops")
    with pytest.raises(ConfigError, match=r"train.peak_tflops: found -1.0"):
        lab.make_config(peak_tflops=-1.0)
