"""Tests of the report: it renders, is well-formed, refers to nothing outside, and its axes are right."""

import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from ms_trainloop.chart import Series, draw_chart, round_ticks, tick_labels
from ms_trainloop.metrics import read_metrics
from ms_trainloop.plan import planned_rates, read_plan
from ms_trainloop.report import write_report


@pytest.fixture
def runs(contracts, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        shutil.copytree(contracts / "metrics" / "golden", folder)
    return folders


def test_several_runs_and_a_summary_become_one_page(runs, tmp_path):
    summary = [{"stage": "corpus <1>", "seconds": 3.25}, {"stage": "model", "seconds": 100, "figure": "loss 2.1"}]

    page = write_report(runs, tmp_path / "out" / "report.html", summary=summary).read_text()

    for part in ("corpus &lt;1&gt;", "loss 2.1", "first, evaluation", "second", "Learning rate", "从前有座山。"):
        assert part in page
    assert "http" not in page.replace("http://www.w3.org", "")
    body = page.removeprefix("<!doctype html>\n").replace('<meta charset="utf-8">', "")
    ElementTree.fromstring(body.replace('<meta name="viewport" content="width=device-width,initial-scale=1">', ""))


def test_the_command_writes_the_page(runs, tmp_path):
    output = tmp_path / "report.html"
    program = "from ms_trainloop.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", program, "report", *map(str, runs), "--output", str(output)],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout.strip()) == (0, str(output)), done.stderr
    assert "<svg" in output.read_text()


def test_the_command_refuses_a_folder_without_metrics_in_one_line(tmp_path):
    program = "from ms_trainloop.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", program, "report", str(tmp_path)], capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1.0, 1000.0, ["0", "200", "400", "600", "800", "1,000"]),
        (2.13, 8.9, ["2", "4", "6", "8", "10"]),
        (0.0, 3e-4, ["0.0000", "0.0001", "0.0002", "0.0003"]),
        (0.0, 3e-5, ["0", "1e-05", "2e-05", "3e-05"]),
        (-1.0, 1.0, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
    ],
)
def test_ticks_are_round_and_cover_the_values(low, high, expected):
    ticks = round_ticks(low, high)

    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert tick_labels(ticks) == expected


@pytest.mark.parametrize("value", [0.0, 7.0, -3e-9, 1e12])
def test_a_flat_curve_still_has_an_axis(value):
    assert len(round_ticks(value, value)) >= 2
    assert "<path" in draw_chart([Series(name="a", points=[(1, value)], color=0)], x_label="x", y_label="y")


def test_a_point_lies_where_the_axis_says():
    points = [(0.0, 0.0), (5.0, 1.0), (10.0, 0.5)]

    chart = ElementTree.fromstring(draw_chart([Series(name="a", points=points, color=0)], x_label="x", y_label="y"))

    texts = {node.text: node for node in chart.iter("text")}
    path = chart.find("path").get("d").replace("M", "").replace("L", "").split()
    assert [float(texts[label].get("x")) for label in ("0", "10")] == [float(path[0]), float(path[4])]
    assert float(texts["1.0"].get("y")) - 4 == pytest.approx(float(path[3]), abs=0.06)


def test_a_spike_survives_thinning_and_gaps_stay_gaps():
    points = [(float(x), 1.0) for x in range(5000)]
    points[2345] = (2345.0, 99.0)
    points[3000] = (3000.0, None)

    chart = ElementTree.fromstring(draw_chart([Series(name="a", points=points, color=0)], x_label="x", y_label="y"))

    path = chart.find("path").get("d")
    heights = [float(part) for part in path.replace("M", "").replace("L", "").split()[1::2]]
    assert path.count("M") == 2
    assert len(heights) < 1000
    assert max(heights) - min(heights) > 200


def test_the_planned_schedule_is_drawn_beside_the_rates_of_the_run(lab, tmp_path):
    config = lab.make_config(steps=12, schedule="wsd", decay_steps=4, groups=({"pattern": "*norm*"},))
    lab.train(
        lab.make_step(config), lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path / "run", progress=None, stop_after=6
    )

    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()

    assert read_plan(tmp_path / "run") == config
    planned = dict(planned_rates(config))
    assert [planned[step] for step in (3.0, 8.0, 12.0)] == [0.02, 0.02, 0.002]
    actual = {line["step"]: line["learning_rate"] for line in read_metrics(tmp_path / "run")}
    assert actual == {step: pytest.approx(planned[step], rel=1e-6) for step in range(1, 7)}
    assert "run, planned" in page
    assert "line color0 planned" in page


def test_a_plan_that_is_not_read_is_left_out_of_the_page(runs, tmp_path, caplog):
    (runs[0] / "train_plan.json").write_text('{"format": "other"}')

    page = write_report(runs, tmp_path / "report.html").read_text()

    assert ", planned" not in page
    assert "the planned schedule is not drawn" in caplog.text
