import json
import subprocess
import sys
import threading
from functools import partial

import pytest
from ms_weightconv import convert, prove, transfer
from ms_weightconv.ckptfile import read_ckpt_file
from ms_weightconv.errors import ConfigError, TargetError
from ms_weightconv.target import staged_folder
from ms_weightconv.tensor import Tensor
from ms_weightconv.tensorfile import lay_out


def interrupt_after(monkeypatch, count):
    """Lets some tensors be written and then interrupts, as Ctrl-C does."""
    original, written = transfer._write, []

    def write(descriptor, job, *rest):
        if len(written) == count:
            raise KeyboardInterrupt
        written.append(job.name)
        return original(descriptor, job, *rest)

    monkeypatch.setattr("ms_weightconv.transfer._write", write)
    return written


@pytest.mark.parametrize("to", ["mindspore", "huggingface", "checkpoint"])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupted_conversion_goes_on_where_it_was(folders, monkeypatch, to, workers):
    source, target = folders.huggingface("llama"), folders.root / "out"
    run = partial(convert, source, target, to=to, max_shard_size="5KB", workers=workers, dtype="bf16", progress=False)
    with monkeypatch.context() as patch:
        first = interrupt_after(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert not target.exists()

    with monkeypatch.context() as patch:
        second = interrupt_after(patch, 10**6)
        report = run()

    assert not set(first) & set(second)
    assert len(first) + len(second) == report.num_tensors
    assert len(report.casts) == report.num_tensors  # those of the first run too
    fresh = convert(source, folders.root / "fresh", to=to, max_shard_size="5KB", dtype="bf16", progress=False)
    assert fresh.checksums == report.checksums
    assert fresh.casts == report.casts
    prove(source, target, progress=False)
    assert sorted(path.name for path in folders.root.iterdir()) == ["fresh", "hf", "out"]


def test_what_was_left_is_not_used_once_the_source_or_the_options_changed(folders, monkeypatch):
    source, target = folders.huggingface("llama"), folders.root / "out"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, to="mindspore", progress=False)
    (source / "model.safetensors").touch()

    with monkeypatch.context() as patch:
        written = interrupt_after(patch, 10**6)
        report = convert(source, target, to="mindspore", progress=False)

    assert len(written) == report.num_tensors
    assert sorted(path.name for path in folders.root.iterdir()) == ["hf", "out"]


def test_bytes_that_were_lost_after_they_were_noted_are_found(folders, monkeypatch):
    source, target = folders.huggingface("llama"), folders.root / "out"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, to="mindspore", workers=1, progress=False)
    (stage,) = folders.root.glob(".out.converting-*")
    content = bytearray((stage / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start : start + 64] = bytes(64)
    (stage / "model.safetensors").write_bytes(content)

    with pytest.raises(TargetError, match="came back with other bytes"):
        convert(source, target, to="mindspore", progress=False)
    convert(source, target, to="mindspore", progress=False)

    prove(source, target, progress=False)


def test_a_journal_with_half_a_line_is_read(folders, monkeypatch):
    source, target = folders.huggingface("llama"), folders.root / "out"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, to="mindspore", workers=1, progress=False)
    (stage,) = folders.root.glob(".out.converting-*")
    journal = stage / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])

    with monkeypatch.context() as patch:
        written = interrupt_after(patch, 10**6)
        report = convert(source, target, to="mindspore", progress=False)

    assert len(written) == report.num_tensors - 6


def test_two_processes_do_not_write_the_same_target(folders):
    target = folders.root / "out"

    with (
        staged_folder(target, folders.root / "hf", is_overwritten=False, plan="a"),
        pytest.raises(TargetError, match="another process is converting"),
        staged_folder(target, folders.root / "hf", is_overwritten=False, plan="a"),
    ):
        pass


@pytest.mark.parametrize("family", ["gpt2", "qwen2_moe", "falcon40"])
def test_threads_write_what_one_writes(folders, family):
    source = folders.huggingface(family)

    convert(source, folders.root / "one", to="mindspore", workers=1, progress=False)
    convert(source, folders.root / "four", to="mindspore", workers=4, progress=False)

    name = "model.safetensors"
    assert (folders.root / "one" / name).read_bytes() == (folders.root / "four" / name).read_bytes()


def test_no_more_bytes_than_the_budget_are_under_way():
    budget, held, most = transfer._Budget(100), [], []
    lock = threading.Lock()

    def work(size):
        with budget.of(size):
            with lock:
                held.append(size)
                most.append(sum(held))
            with lock:
                held.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in [60, 50, 40, 100, 10, 30] * 20]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) <= 100


def test_a_failing_thread_stops_the_others_and_leaves_nothing(folders, monkeypatch):
    source = folders.huggingface("llama")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ms_weightconv.transfer._write_all", fail)

    with pytest.raises(OSError, match="No space"):
        convert(source, folders.root / "out", to="mindspore", workers=3, progress=False)
    assert [path.name for path in folders.root.iterdir()] == ["hf"]


def test_mindspores_ckpt_is_written_and_read_back(folders):
    source = folders.huggingface("qwen3", dtype="BF16")

    report = convert(source, folders.root / "ckpt", to="mindspore", file_format="ckpt", progress=False)
    convert(folders.root / "ckpt", folders.root / "back", to="huggingface", progress=False)

    assert not (folders.root / "ckpt" / "model.safetensors").exists()
    tensors, _ = read_ckpt_file(folders.root / "ckpt" / "model.ckpt")
    assert set(tensors) == set(report.checksums)
    folders.assert_same(source, folders.root / "back")
    with pytest.raises(ConfigError, match="file_format: found 'ckpt' with to huggingface"):
        convert(source, folders.root / "x", to="huggingface", file_format="ckpt", progress=False)
    with pytest.raises(ConfigError, match="workers: found 0"):
        convert(source, folders.root / "x", to="huggingface", workers=0, progress=False)


PEAK = """
import re, sys
from pathlib import Path
from ms_weightconv import convert
def peak():  # ru_maxrss would begin with the peak of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
convert(Path(sys.argv[1]), Path(sys.argv[2]), to="huggingface", dtype="fp16", workers=4, progress=False)
print(peak() - before)
"""


def test_memory_stays_below_twice_the_largest_tensor_and_64_mb(folders):
    sizes = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    shape = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
    source = folders.root / "hf"
    source.mkdir()
    config = folders.configs["llama3"] | sizes | shape
    (source / "config.json").write_text(json.dumps(config))
    tensors = {name: Tensor("F32", shape, list) for name, shape in folders.shapes_of(config).items()}
    header, places = lay_out(tensors, {})
    with (source / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(max(place + tensors[name].num_bytes for name, place in places.items()))
    total = (source / "model.safetensors").stat().st_size / 2**20

    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(source), str(folders.root / "out")], capture_output=True, text=True, check=True
    )

    largest = 4096 * 1024 * 4 / 2**20
    assert total > 250
    assert float(result.stdout) < 2 * largest + 64
    assert json.loads((folders.root / "out" / "config.json").read_text())["vocab_size"] == 4096
