"""Tests of reading metrics: the contract's golden file, and what is refused."""

import pytest
from ms_trainloop.errors import MetricsError
from ms_trainloop.metrics import MetricsFile, read_metrics


def test_the_golden_file_is_read(contracts):
    lines = read_metrics(contracts / "metrics" / "golden")

    assert {line["kind"] for line in lines} == {"train", "evaluation", "sample"}
    assert lines[0]["loss_scale"] == 65536.0


def test_a_torn_last_line_is_ignored_by_the_reader_and_removed_by_the_writer(tmp_path):
    with MetricsFile(tmp_path, step=0) as file:
        file.write({"kind": "sample", "step": 1, "prompt": "a", "text": "\ud800"})
        file.write({"kind": "train", "step": 2, "loss": float("nan")})
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "train", "step": 3')

    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert read_metrics(tmp_path)[1]["loss"] is None
    with MetricsFile(tmp_path, step=2):
        pass
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b'{"format": "ms-trainloop.metrics", "version": 2}\n', "found format ms-trainloop.metrics, version 2"),
        (b'{"format": "other", "version": 1}\n', "found format other"),
        (b'{"format": "ms-trainloop.metrics", "version": 1}\n{"a"\n', "jsonl:2: not JSON"),
        (b'{"format": "ms-trainloop.metrics", "version": 1}\n[1]\n', "jsonl:2: found list"),
        (b'{"format": "ms-trainloop.metrics", "version": 1}\n{"kind": "train"}\n', "jsonl:2: expected"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "metrics.jsonl").write_bytes(content)

    with pytest.raises(MetricsError, match=message):
        read_metrics(tmp_path)


def test_a_folder_without_metrics_is_refused(tmp_path):
    with pytest.raises(MetricsError, match="no such file"):
        read_metrics(tmp_path)
