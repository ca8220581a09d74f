"""Recompute: the same numbers to the last bit, work done twice where it was asked for, and memory saved."""

import subprocess
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_gptmodel import LanguageModel, ModelConfig, kernels_cpu, load_weights, named_parameters
from ms_gptmodel.block import Block

IDS = np.arange(24, dtype=np.int32).reshape(2, 12)
RATES = {"residual_dropout": 0.2, "attention_dropout": 0.3, "dropout_seed": 11}
HOW = {"none": None, "selective": {"attention_only": True}, "full": {}, "first block": {"numbers": [0]}}


class Loss(nn.Cell):
    """A loss that every logit moves."""

    def __init__(self, model):
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, ids):
        logits = self.model(ids)
        return (logits * logits).mean()


def loss_and_gradients(config, weights, how):
    model = LanguageModel(ModelConfig.from_mapping(config))
    names = named_parameters(model)
    load_weights(model, {name: value for name, value in weights.items() if name in names})
    if HOW[how] is not None:
        model.recompute_blocks(**HOW[how])
    parameters = [p for p in named_parameters(model).values() if p.requires_grad]
    loss, gradients = ops.value_and_grad(Loss(model).set_train(True), None, parameters)(Tensor(IDS))
    return [loss.asnumpy().copy(), *(g.asnumpy().copy() for g in gradients)]


@pytest.fixture
def pynative():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.mark.parametrize("family", ["gpt2", "sliding"])
def test_recomputed_gradients_are_the_same_to_the_last_bit(family, families, model_of, pynative):
    config, (_, weights) = {**families[family], **RATES}, model_of(family)
    kept, *recomputed = (loss_and_gradients(config, weights, how) for how in HOW)

    for pieces in recomputed:
        assert all(np.array_equal(a, b) for a, b in zip(kept, pieces, strict=True))


def test_recomputed_gradients_are_the_same_to_the_last_bit_in_a_graph(families, model_of):
    config, (_, weights) = {**families["llama"], "num_hidden_layers": 1}, model_of("llama")

    kept, selective = (loss_and_gradients(config, weights, how) for how in ("none", "selective"))

    assert all(np.array_equal(a, b) for a, b in zip(kept, selective, strict=True))


@pytest.mark.parametrize(
    ("how", "blocks", "attentions"), [("none", 2, 2), ("selective", 2, 4), ("full", 4, 4), ("first block", 3, 3)]
)
def test_what_was_asked_for_runs_twice_a_step(how, blocks, attentions, families, model_of, pynative, monkeypatch):
    calls = {"block": 0, "attention": 0}

    def count(kind, cell):
        construct = cell.construct

        def counted(self, *args):
            calls[kind] += 1
            return construct(self, *args)

        monkeypatch.setattr(cell, "construct", counted)

    count("block", Block)
    count("attention", kernels_cpu.Attention)
    config, (_, weights) = families["llama"], model_of("llama")

    loss_and_gradients(config, weights, how)

    assert calls == {"block": blocks, "attention": attentions}


STEP = """
import re, sys
from pathlib import Path
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from ms_gptmodel import LanguageModel, ModelConfig, token_loss

ms.set_context(mode=ms.PYNATIVE_MODE)
sizes = dict(vocab_size=64, hidden_size=64, num_hidden_layers=8, num_attention_heads=8, intermediate_size=256)
model = LanguageModel(ModelConfig(**sizes, max_position_embeddings=256)).set_train(True)
if sys.argv[1] != "none":
    model.recompute_blocks(attention_only=sys.argv[1] == "selective")
step = ops.value_and_grad(lambda ids: token_loss(model(ids), ids)[0], None, model.trainable_params())
ids = Tensor(np.zeros((8, 256), np.int32))
# Not getrusage: what it counts starts at the peak of the process that started this one.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
step(ids)[0].asnumpy()
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_a_step_takes_less_memory_the_more_is_recomputed(tmp_path):
    """Peak resident memory of processes of their own, in MiB above the model; a graph on CPU saves none (README)."""
    script = tmp_path / "step.py"
    script.write_text(STEP)
    peaks = {}
    for how in ("none", "selective", "full"):
        done = subprocess.run([sys.executable, script, how], capture_output=True, text=True, check=True, timeout=200)
        peaks[how] = int(done.stdout.splitlines()[-1])

    assert peaks["selective"] < 0.7 * peaks["none"]
    assert peaks["full"] < 0.5 * peaks["none"]
