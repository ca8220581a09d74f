import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import ms_dataprep
import pytest
from ms_dataprep.errors import SourceError, UnfinishedError

OPTIONS = {
    "seq_length": 64, "shard_megabytes": 4e-3, "dedup": "near", "dedup_lines": "paragraph", "layout": "bytes",
    "lists_dropped": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 60 kB: texts of several lengths, copies, near-copies, bad lines, one gzip-free text file."""
    folder = tmp_path_factory.mktemp("corpus")
    words = [
        "the",
        "a",
        "cat",
        "dog",
        "sat",
        "ran",
        "on",
        "under",
        "mat",
        "log",
        "and",
        "then",
        "猫",
        "狗",
        "在",
        "垫子",
    ]
    lines = []
    for number in range(400):
        random.seed(number % 350)
        text = " ".join(random.choices(words, k=random.randrange(3, 60)))
        lines.append(json.dumps({"text": text + (" end" if number % 7 == 0 else "")}, ensure_ascii=False))
        if number % 50 == 9:
            lines.append("{bad")
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "b.txt").write_text("A text of its own.\n" * 100)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    """All files but the report's and MindRecord's index, in which SQLite keeps a counter of its own."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(".db") and not path.name.startswith("report")
    }


@pytest.fixture(scope="module")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset of one process."""
    folder = tmp_path_factory.mktemp("reference") / "dataset"
    golden = Path(__file__).parents[3] / "integration_tests/contracts/dataset/golden/int32/tokenizer.json"
    config = ms_dataprep.DataConfig(**OPTIONS)
    manifest = ms_dataprep.build([corpus], folder, tokenizer=golden, config=config, progress=False)
    assert len(manifest.shards) > 8
    assert ms_dataprep.verify(folder).rows == manifest.rows
    return read_files(folder)


def test_two_workers_write_the_same_bytes(corpus, reference, tokenizer_path, tmp_path) -> None:
    ms_dataprep.build(
        [corpus], tmp_path / "out", tokenizer=tokenizer_path, config=ms_dataprep.DataConfig(**OPTIONS), num_workers=2,
        progress=False,
    )  # fmt: skip

    assert read_files(tmp_path / "out") == reference


@pytest.mark.slow
def test_ray_writes_the_same_bytes(corpus, reference, tokenizer_path, tmp_path) -> None:
    import ray

    for attempt in range(3):  # a busy machine may take longer than the 30 seconds that Ray waits for itself
        try:
            ms_dataprep.build(
                [corpus], tmp_path / "out", tokenizer=tokenizer_path, config=ms_dataprep.DataConfig(**OPTIONS),
                num_workers=2, engine="ray", progress=False, resume=True,
            )  # fmt: skip
            break
        except UnfinishedError as error:
            if attempt == 2 or "Ray does not start" not in str(error):
                raise
    ray.shutdown()

    assert read_files(tmp_path / "out") == reference


BUILD = """
import sys, ms_dataprep
if __name__ == "__main__":
    corpus, out, tokenizer, workers, resume = sys.argv[1:]
    ms_dataprep.build([corpus], out, tokenizer=tokenizer, config=ms_dataprep.DataConfig(**{options!r}),
                      num_workers=int(workers), resume=resume == "resume", progress=False)
"""


def start_build(tmp_path: Path, corpus: Path, tokenizer: Path, workers: int, resume: str) -> "subprocess.Popen[str]":
    script = tmp_path / "build.py"
    script.write_text(BUILD.format(options=OPTIONS))
    command = [sys.executable, script, corpus, tmp_path / "out", tokenizer, str(workers), resume]
    return subprocess.Popen(command)


@pytest.mark.parametrize(
    ("workers", "moments"), [(1, ["write-00004.json"]), (2, ["read-00003.json", "write-00002.json"])]
)
@pytest.mark.slow
def test_a_build_killed_at_any_stage_goes_on_to_the_same_bytes(
    corpus, reference, tokenizer_path, tmp_path, workers, moments
) -> None:
    work = tmp_path / ".out.building" / ".work"
    for done in moments:
        running = start_build(tmp_path, corpus, tokenizer_path, workers, "resume")
        while not (work / done).exists() and running.poll() is None:
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert not (tmp_path / "out").exists()
        assert (work / done).exists()
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("read-*.json")}
    last = start_build(tmp_path, corpus, tokenizer_path, workers, "resume")

    assert last.wait() == 0
    assert read_files(tmp_path / "out") == reference
    assert len(kept) > 8
    assert not (tmp_path / ".out.building").exists()


def test_resuming_with_other_options_is_refused_and_keeps_what_is_done(
    corpus, tokenizer_path, tmp_path, monkeypatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def build(**changes: object) -> ms_dataprep.Manifest:
        return ms_dataprep.build(
            [corpus], tmp_path / "out", tokenizer=tokenizer_path, resume=True, progress=False,
            config=ms_dataprep.DataConfig(**{**OPTIONS, **changes}),
        )  # fmt: skip

    with monkeypatch.context() as patch:
        patch.setattr("ms_dataprep.pipeline.find_duplicates", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build()
    done = sorted(path.name for path in (tmp_path / ".out.building/.work").iterdir())

    with pytest.raises(UnfinishedError, match=r"cannot resume with other options: config: .*begin anew without"):
        build(seq_length=65)
    assert sorted(path.name for path in (tmp_path / ".out.building/.work").iterdir()) == done
    assert build().seq_length == 64


def test_a_worker_that_fails_or_dies_fails_the_build(corpus, tokenizer_path, tmp_path, monkeypatch) -> None:
    (tmp_path / "steps.py").write_text(
        "import os\n"
        "def die(text):\n    os._exit(3) if 'then' in text else None\n    return text\n"
        "def fail(text):\n    raise ValueError('no such text')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    def build(**changes: object) -> None:
        config = ms_dataprep.DataConfig(**{**OPTIONS, **changes})
        ms_dataprep.build(
            [corpus], tmp_path / "out", tokenizer=tokenizer_path, config=config, num_workers=2, progress=False
        )

    with pytest.raises(UnfinishedError, match="a worker process died"):
        build(own_steps=("steps.die",))
    with pytest.raises(SourceError, match=r"a\.jsonl:\d+: not JSON"):
        build(on_error="fail")
    with pytest.raises(ValueError, match="no such text"):
        build(own_steps=("steps.fail",))
    assert not (tmp_path / "out").exists()


def test_workers_end_with_a_parent_that_is_killed(corpus, tokenizer_path, tmp_path) -> None:
    (tmp_path / "steps.py").write_text(
        f"import os, time\ndef wait(text):\n    open({str(tmp_path)!r} + f'/pid-{{os.getpid()}}', 'w')\n"
        "    time.sleep(60)\n    return text\n"
    )
    (tmp_path / "build.py").write_text(BUILD.format(options={**OPTIONS, "own_steps": ("steps.wait",)}))
    command = [sys.executable, tmp_path / "build.py", corpus, tmp_path / "out", tokenizer_path, "2", "no"]
    running = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    while len(workers := list(tmp_path.glob("pid-*"))) < 2:
        time.sleep(0.05)
        assert running.poll() is None
    running.send_signal(signal.SIGKILL)
    running.wait()

    for worker in workers:
        status = Path("/proc") / worker.name.removeprefix("pid-") / "stat"
        for _ in range(200):
            if not status.exists() or status.read_text().split()[2] == "Z":
                break
            time.sleep(0.05)
        assert not status.exists() or status.read_text().split()[2] == "Z"


def test_ctrl_c_is_one_line_and_leaves_what_is_done_for_resume(corpus, reference, tokenizer_path, tmp_path) -> None:
    (tmp_path / "steps.py").write_text(
        f"import pathlib, time\nflag = pathlib.Path({str(tmp_path / 'begun')!r})\n"
        "def slow(text):\n    flag.touch()\n    time.sleep(0.02)\n    return text\n"
    )
    options = ["--seq-length", "64", "--own-step", "steps.slow", "--workers", "2"]
    code = "import ms_dataprep.cli; ms_dataprep.cli.main()"
    command = [sys.executable, "-c", code, "build", corpus, "-o", tmp_path / "out", "-t", tokenizer_path, *options]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)

    assert running.returncode not in (0, None)
    assert "--resume" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.building" / ".work" / "options.json").exists()
