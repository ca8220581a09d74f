"""What the integration tests share: a tiny run's config, its data, and a way to call the tools as users do."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]

WORDS = [
    "model", "data", "layer", "token", "weight", "loss", "step", "rate", "batch", "row",
    "file", "text", "graph", "cell", "name", "value", "list", "array", "shape", "type",
]  # fmt: skip


@pytest.fixture(scope="session")
def run_tool():
    """Runs `tools/NAME` with options in a process of its own; returns the finished process."""

    def run(name: str, *options: object, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools" / name), *map(str, options)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """200 short documents of made-up sentences, the same in every session."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "corpus.jsonl"
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "." for _ in range(400)]
    documents = [" ".join(rng.choices(sentences, k=rng.randint(3, 9))) for _ in range(200)]
    path.write_text("".join(f'{{"text": "{text}"}}\n' for text in documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_changes() -> tuple[str, ...]:
    """Changes to configs/tiny.yaml that make a run of seconds."""
    return (
        "run.sample_tokens=6", "run.prompts=[Model data, The]", "data.seq_length=32", "data.min_characters=1",
        "data.validation_share=0.2", "model.vocab_size=300", "model.hidden_size=32", "model.intermediate_size=64",
        "model.num_hidden_layers=2", "model.num_attention_heads=4", "model.num_key_value_heads=2",
        "model.max_position_embeddings=64", "train.steps=12", "train.global_batch_size=4", "train.micro_batch_size=2",
        "train.warmup_steps=2", "train.log_every=1", "train.evaluate_every=6", "train.save_every=6",
        "train.sample_every=0", "export.max_length=48", "export.slots=3", "export.prefill_lengths=[8, 32]",
        "export.decode_batches=[2]",
    )  # fmt: skip


@pytest.fixture(scope="session")
def set_options():
    """Turns changes into `--set` options."""
    return lambda changes: [part for change in changes for part in ("--set", change)]


@pytest.fixture(scope="session")
def tiny_run(run_tool, corpus, tiny_changes, set_options, tmp_path_factory) -> Path:
    """A finished run of 12 steps in one process; its config.yaml stands in its folder. Read it, do not change it."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    folder.mkdir()
    config = folder / "config.yaml"
    sections = yaml.safe_load((ROOT / "configs" / "tiny.yaml").read_text(encoding="utf-8"))
    for change in (*tiny_changes, f"run.folder={folder}", f"run.text={corpus}"):
        place, _, value = change.partition("=")
        section, _, key = place.partition(".")
        sections[section][key] = yaml.safe_load(value)
    config.write_text(yaml.safe_dump(sections), encoding="utf-8")

    done = run_tool("pretrain.py", "--config", config)

    assert done.returncode == 0, done.stdout + done.stderr
    return folder
