"""A tiny model, its data and an npz checkpointer; run as a script it is one training process for the tests."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import Interrupted
from ms_trainloop.loop import train
from ms_trainloop.step import TrainStep

VOCAB, HIDDEN, SEQ, ROWS = 23, 8, 6, 10


class TinyModel(nn.Cell):
    """Embedding, a gated layer, a norm weight and a head: one parameter of each kind that decay rules tell apart."""

    def __init__(self, seed=0):
        super().__init__()
        draw = np.random.default_rng(seed).normal
        shapes = {
            "embedding.weight": (VOCAB, HIDDEN),
            "mlp.up.weight": (HIDDEN, HIDDEN),
            "mlp.up.bias": (HIDDEN,),
            "norm.weight": (HIDDEN,),
            "lm_head.weight": (VOCAB, HIDDEN),
        }
        self.named = {
            name: Parameter(Tensor(draw(0, 0.5, shape).astype(np.float32)), name=f"raw.{name}")
            for name, shape in shapes.items()
        }
        self.embedding, self.up, self.bias, self.norm, self.head = self.named.values()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        x = ops.gather(self.embedding, input_ids.reshape((-1,)), 0)
        y = self.matmul(x, self.up) + self.bias
        x = (x + y * ops.sigmoid(y)) * self.norm
        return self.matmul(x, self.head).reshape((batch, seq, VOCAB))


class DroppingModel(TinyModel):
    """TinyModel with a dropout of 0.1 whose masks are a function of a counter among the parameters."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.counter = Parameter(Tensor(np.int32(0)), name="counter.forward", requires_grad=False)
        self.named["counter.forward"] = self.counter
        numbers = np.random.default_rng(3).integers(-(2**31), 2**31, (64, HIDDEN), np.int32)
        self.numbers = Tensor(numbers)
        self.threshold = int(0.1 * 2**32) - 2**31

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        x = ops.gather(self.embedding, input_ids.reshape((-1,)), 0)
        if self.training:
            count = self.counter + 1
            ops.assign(self.counter, count)
            drawn = self.numbers[: batch * seq] * (count * 2 + 1)
            x = x * ops.cast(drawn >= self.threshold, mindspore.float32) * 1.1111112
        y = self.matmul(x, self.up) + self.bias
        x = (x + y * ops.sigmoid(y)) * self.norm
        return self.matmul(x, self.head).reshape((batch, seq, VOCAB))


class Linear(nn.Cell):
    """x weight^T, in the type of the weight."""

    def __init__(self, rows, columns, draw):
        super().__init__()
        self.weight = Parameter(Tensor(draw(0, columns**-0.5, (rows, columns)).astype(np.float32)), name="weight")
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x):
        return self.matmul(x, self.weight)


class LayeredModel(nn.Cell):
    """Matrices in cells of their own, MindSpore's norm and softmax: what mixed precision tells apart."""

    def __init__(self, seed=0):
        super().__init__()
        draw = np.random.default_rng(seed).normal
        table = Tensor(draw(0, 1, (VOCAB, HIDDEN)).astype(np.float32))
        self.embedding = nn.Embedding(VOCAB, HIDDEN, embedding_table=table)
        self.norm = nn.LayerNorm((HIDDEN,))
        self.up = Linear(HIDDEN, HIDDEN, draw)
        self.softmax = nn.Softmax()
        self.head = Linear(VOCAB, HIDDEN, draw)
        self.named = {
            "embedding.weight": self.embedding.embedding_table,
            "norm.weight": self.norm.gamma,
            "norm.bias": self.norm.beta,
            "up.weight": self.up.weight,
            "lm_head.weight": self.head.weight,
        }
        for name, parameter in self.named.items():
            parameter.name = name

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        x = self.embedding(input_ids.reshape((-1,)))
        normed = self.norm(x)
        shares = self.softmax(self.up(normed))
        logits = self.head(x + shares)
        return logits.reshape((batch, seq, VOCAB))


class Steep(nn.Cell):
    """What can break: `exp` overflows where its input is large, `sqrt` has no finite gradient at 0."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def construct(self, x):
        if self.kind == "exp":
            grown = ops.exp(x)
            return grown - 1.0
        if self.kind == "sqrt":
            return ops.sqrt(ops.abs(x))
        return x


class FragileModel(nn.Cell):
    """Sound for every id but TRAP, whose row of the table is 1000, or 0 for `sqrt`."""

    TRAP = 22

    def __init__(self, kind):
        super().__init__()
        draw = np.random.default_rng(0).normal
        table = draw(0, 0.5, (VOCAB, HIDDEN)).astype(np.float32)
        table[self.TRAP] = 0.0 if kind == "sqrt" else 1000.0
        self.embedding = nn.Embedding(VOCAB, HIDDEN, embedding_table=Tensor(table))
        self.steep = Steep(kind)
        self.head = Linear(VOCAB, HIDDEN, draw)
        self.named = {"embedding.weight": self.embedding.embedding_table, "lm_head.weight": self.head.weight}
        for name, parameter in self.named.items():
            parameter.name = name

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        x = self.steep(self.embedding(input_ids.reshape((-1,))))
        return self.head(x).reshape((batch, seq, VOCAB))


def make_fragile(config):
    """What `ms-trainloop replay --model` calls."""
    model = FragileModel(config["kind"])
    return model, model.named


class LinearModel(nn.Cell):
    """logits = head[ids]: its gradient is known in closed form."""

    def __init__(self, seed=0):
        super().__init__()
        value = np.random.default_rng(seed).normal(0, 0.5, (VOCAB, VOCAB)).astype(np.float32)
        self.head = Parameter(Tensor(value), name="lm_head.weight")

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        return ops.gather(self.head, input_ids.reshape((-1,)), 0).reshape((batch, seq, VOCAB))


class LoadedModel(LinearModel):
    """In training it also returns an auxiliary loss: 0.3 times the mean square of the logits of its call."""

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        logits = super().construct(input_ids, position_ids, segment_ids)
        if not self.training:
            return logits
        return logits, 0.3 * ops.square(logits).mean()


class WideModel(LinearModel):
    """LinearModel with 160 more matrices, as many parameters as 18 layers have; all have one shape."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.more = ParameterTuple(
            [Parameter(Tensor(np.zeros((VOCAB, VOCAB), np.float32)), name=f"more.{i}.weight") for i in range(160)]
        )
        self.add_n = ops.AddN()

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        batch, seq = input_ids.shape
        table = self.add_n(self.more) + self.head
        return ops.gather(table, input_ids.reshape((-1,)), 0).reshape((batch, seq, VOCAB))


class OtherModel(nn.Cell):
    """Has an eval-only part, to see that training flags come back."""

    def __init__(self):
        super().__init__()
        self.inner = TinyModel()
        self.frozen = nn.Dropout(p=0.5)
        self.open = nn.Dropout(p=0.5)

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        return self.open(self.frozen(self.inner(input_ids, position_ids, segment_ids)))


class Doubling(nn.Cell):
    """What an all-reduce over two ranks with the same rows gives."""

    def construct(self, tensor):
        return tensor + tensor


class NpzCheckpointer:
    """The protocol of resume.py over two files a step."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def save(self, step, tensors, values):
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez(self.folder / f"{step:08d}.npz", **tensors)
        (self.folder / f"{step:08d}.json").write_text(json.dumps(values, allow_nan=False))

    def load(self):
        steps = sorted(self.folder.glob("*.json"))
        if not steps:
            return None
        with np.load(steps[-1].with_suffix(".npz")) as file:
            tensors = {name: file[name] for name in file.files}
        return SimpleNamespace(step=int(steps[-1].stem), tensors=tensors, values=json.loads(steps[-1].read_text()))


class MemoryCheckpointer:
    """Keeps every state that was saved; `load` gives that of `at`, or the newest."""

    def __init__(self, states=None, at=None):
        self.states, self.at = dict(states or {}), at

    def save(self, step, tensors, values):
        self.states[step] = (tensors, json.loads(json.dumps(values, allow_nan=False)))

    def load(self):
        step = self.at if self.at is not None else max(self.states, default=None)
        if step is None:
            return None
        return SimpleNamespace(step=step, tensors=self.states[step][0], values=self.states[step][1])


def make_batch(rows):
    """Contract `batch` from rows of seq + 1 ids; id 0 ends a document, and no loss is taken after it."""
    rows = np.asarray(rows, np.int32)
    labels = np.where(rows[:, :-1] == 0, -100, rows[:, 1:]).astype(np.int32)
    positions = np.tile(np.arange(rows.shape[1] - 1, dtype=np.int32), (len(rows), 1))
    return {
        "input_ids": np.ascontiguousarray(rows[:, :-1]),
        "labels": labels,
        "position_ids": positions,
        "segment_ids": np.ones_like(positions),
    }


def make_rows(count=ROWS, seed=1):
    return np.random.default_rng(seed).integers(0, VOCAB, (count, SEQ + 1), dtype=np.int32)


def batches_of(rows, batch_size, seed=5):
    """An endless source with another order in each epoch, from any sample on."""

    def batches(samples):
        while True:
            numbers = np.arange(samples, samples + batch_size)
            orders = {e: np.random.default_rng([seed, e]).permutation(len(rows)) for e in set(numbers // len(rows))}
            picked = np.array([orders[n // len(rows)][n % len(rows)] for n in numbers])
            yield make_batch(rows[picked]) | {"sample_ids": numbers}
            samples += batch_size

    return batches


def trapped_batches(lab_rows, batch_size, traps):
    """Rows in order, without the trap id but in the global samples of `traps`, where it is the third input."""
    clean = np.where(lab_rows == FragileModel.TRAP, 1, lab_rows)

    def batches(samples):
        while True:
            numbers = np.arange(samples, samples + batch_size)
            rows = clean[numbers % len(clean)].copy()
            rows[np.isin(numbers, traps), 2] = FragileModel.TRAP
            yield make_batch(rows) | {"sample_ids": numbers}
            samples += batch_size

    return batches


def make_config(**changes):
    defaults = {
        "steps": 12,
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "learning_rate": 0.02,
        "min_learning_rate": 0.002,
        "warmup_steps": 3,
        "log_every": 1,
    }
    return TrainConfig(**{**defaults, **changes})


def make_step(config=None, *, has_dropout=False, **options):
    model = DroppingModel() if has_dropout else TinyModel()
    return TrainStep(model, config or make_config(), parameters=model.named, **options)


def weights_of(step):
    return {name: np.array(parameter.asnumpy()) for name, parameter in step.named_parameters.items()}


def main():
    """Trains; `--kill-at N` sends itself SIGTERM after step N, `--stop-after N` stops there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--stop-after", type=int)
    options = parser.parse_args()
    mindspore.set_device("CPU")
    step = make_step()
    losses = {}

    def on_step(number, result):
        losses[number] = [result.loss_sum, result.learning_rate, result.grad_norm]
        if number == options.kill_at:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(
            step,
            batches_of(make_rows(), 4),
            run_dir=options.folder,
            checkpointer=NpzCheckpointer(options.folder / "checkpoints"),
            on_step=on_step,
            samples_per_epoch=ROWS,
            tokenizer_fingerprint="sha256:1",
            stop_after=options.stop_after,
        )
    except Interrupted as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.code)
    finally:
        with (options.folder / "losses.jsonl").open("a") as file:
            file.writelines(json.dumps([number, *values]) + "\n" for number, values in losses.items())


if __name__ == "__main__":
    main()
