"""One whole training step in fp32: forward, backward, clipping, AdamW and the loss on the host, tokens a second.

Small: 4 layers, hidden 256, 4 heads, 8 rows of 256 ids, vocabulary 8192. `124m`: GPT-2's own sizes, 2 rows of 512 ids.
`plain_mindspore` is the same GPT-2 as MindSpore's documentation would have it written: nn.Dense, nn.LayerNorm,
ops.softmax, ops.cross_entropy, nn.AdamWeightDecay. `matmul_share_of_peak` is the small GPT-2's multiplications in
GFLOP/s over those of numpy's matmul of 2048 x 2048. `compile_seconds` is the first call less a later one, for 12 layers
of hidden 256.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

FIGURES = {
    "gpt2_vs_torch_eager": ("gpt2", "transformers_gpt2"),
    "gpt2_vs_plain_mindspore": ("gpt2", "plain_gpt2"),
    "llama_vs_transformers": ("llama", "transformers_llama"),
    "gpt2_124m_vs_torch_eager": ("gpt2_124m", "transformers_gpt2_124m"),
    "matmul_share_of_peak": ("matmul_gpt2", "matmul_numpy"),
    "compile_seconds": "compile_gpt2_deep",
}
UNIT = "tokens/s, GFLOP/s or s"
HEAD_DIM = 64
SIZES = {  # rows, ids of a row, vocabulary, hidden, layers
    "": (8, 256, 8192, 256, 4),
    "_deep": (8, 256, 8192, 256, 12),
    "_124m": (2, 512, 50257, 768, 12),
}
WARMUP, STEPS = 3, 12
LARGE_WARMUP, LARGE_STEPS = 1, 4  # a step of 124 million parameters takes seconds

Step = Callable[[np.ndarray], None]


def measure(contender: str) -> float:
    """Returns the rate of the median step after warm-up (compilation is not counted), or seconds of compilation."""
    kind, _, rest = contender.partition("_")
    if contender == "matmul_numpy":
        return _numpy_gflops()
    if kind == "matmul":
        return _tokens_per_second(_product_step("gpt2", SIZES[""]), SIZES[""]) * _flops_per_token(SIZES[""]) / 1e9
    if kind == "compile":
        times = _times(_product_step("gpt2", SIZES["_deep"]), SIZES["_deep"])
        return times[0] - statistics.median(times[WARMUP:])
    makers = {"transformers": _transformers_step, "plain": _plain_step}
    name = rest if kind in makers else contender
    family, _, size = name.partition("_")
    sizes = SIZES[f"_{size}" if size else ""]
    return _tokens_per_second(makers.get(kind, _product_step)(family, sizes), sizes)


def _tokens_per_second(step: Step, sizes: tuple[int, ...]) -> float:
    warmup = LARGE_WARMUP if sizes == SIZES["_124m"] else WARMUP
    return sizes[0] * sizes[1] / statistics.median(_times(step, sizes)[warmup:])


def _times(step: Step, sizes: tuple[int, ...]) -> list[float]:
    rows, length, vocab, *_ = sizes
    count = LARGE_WARMUP + LARGE_STEPS if sizes == SIZES["_124m"] else WARMUP + STEPS
    times = []
    for batch in np.random.default_rng(0).integers(0, vocab, (count, rows, length + 1), dtype=np.int32):
        start = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - start)
    return times


def _flops_per_token(sizes: tuple[int, ...]) -> float:
    """Forward and backward, 6 for each weight of a matrix, and 12 layers x hidden x length for attention."""
    _, length, vocab, hidden, layers = sizes
    return 6 * (12 * layers * hidden * hidden + vocab * hidden) + 12 * layers * hidden * length


def _numpy_gflops() -> float:
    size = 2048
    left, right = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    times = []
    for _ in range(WARMUP + STEPS):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def _product_step(family: str, sizes: tuple[int, ...]) -> Step:
    from ms_gptmodel import LanguageModel, ModelConfig, named_parameters
    from ms_trainloop import TrainConfig, TrainStep

    rows, length, vocab, hidden, layers = sizes
    values = {
        "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD_DIM, "max_position_embeddings": length,
    }  # fmt: skip
    if family == "gpt2":
        values |= {
            "intermediate_size": 4 * hidden, "norm_kind": "layer_norm", "norm_bias": True, "position_kind": "learned",
            "hidden_act": "gelu_new", "gated_mlp": False, "attention_bias": True, "attention_output_bias": True,
            "mlp_bias": True, "tie_word_embeddings": True,
        }  # fmt: skip
    else:
        values |= {"intermediate_size": 688}
    model = LanguageModel(ModelConfig.from_mapping(values), seed=0)
    config = TrainConfig(steps=1000, global_batch_size=rows, micro_batch_size=rows, learning_rate=1e-4, warmup_steps=10)
    step = TrainStep(model, config, parameters=named_parameters(model))
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length)).copy()
    segments = np.ones((rows, length), np.int32)

    def run(batch: np.ndarray) -> None:
        step.run(  # fetches the loss, so the step has ended
            {
                "input_ids": np.ascontiguousarray(batch[:, :-1]), "labels": np.ascontiguousarray(batch[:, 1:]),
                "position_ids": positions, "segment_ids": segments,
            }
        )  # fmt: skip

    return run


def _transformers_step(family: str, sizes: tuple[int, ...]) -> Step:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(2)
    _, length, vocab, hidden, layers = sizes
    heads = hidden // HEAD_DIM
    if family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=length,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
        )  # fmt: skip
    else:
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=688, max_position_embeddings=length)
        )  # fmt: skip
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def run(batch: np.ndarray) -> None:
        ids = torch.from_numpy(batch.astype(np.int64))
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return run


def _plain_step(family: str, sizes: tuple[int, ...]) -> Step:
    import mindspore
    from mindspore import Parameter, Tensor, nn, ops

    _, length, vocab, hidden, layers = sizes
    mindspore.set_context(mode=mindspore.GRAPH_MODE)

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first_norm, self.second_norm = nn.LayerNorm((hidden,)), nn.LayerNorm((hidden,))
            self.attention, self.output = nn.Dense(hidden, 3 * hidden), nn.Dense(hidden, hidden)
            self.up, self.down = nn.Dense(hidden, 4 * hidden), nn.Dense(4 * hidden, hidden)

        def construct(self, x: Tensor, mask: Tensor) -> Tensor:
            rows = x.shape[0]
            q, k, v = ops.split(self.attention(self.first_norm(x)), hidden, -1)
            q, k, v = (t.reshape(rows, length, -1, HEAD_DIM).transpose(0, 2, 1, 3) for t in (q, k, v))
            shares = ops.softmax(ops.matmul(q, k.swapaxes(2, 3)) * HEAD_DIM**-0.5 + mask, -1)
            x = x + self.output(ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(rows, length, hidden))
            return x + self.down(ops.gelu(self.up(self.second_norm(x)), approximate="tanh"))

    class GPT2(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(vocab, hidden, embedding_table="normal")
            self.positions = nn.Embedding(length, hidden, embedding_table="normal")
            self.blocks = nn.CellList([Block() for _ in range(layers)])
            self.norm = nn.LayerNorm((hidden,))
            self.numbers = Tensor(np.arange(length, dtype=np.int32))
            self.mask = Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))

        def construct(self, ids: Tensor, labels: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions(self.numbers)
            for block in self.blocks:
                x = block(x, self.mask)
            logits = ops.matmul(self.norm(x), self.tokens.embedding_table.T)
            return ops.cross_entropy(logits.reshape(-1, vocab), labels.reshape(-1))

    model = GPT2()
    weights = model.trainable_params()
    optimizer = nn.AdamWeightDecay(weights, learning_rate=1e-4, weight_decay=0.1)
    differentiate = ops.value_and_grad(model, None, weights)

    @mindspore.jit
    def step(ids: Tensor, labels: Tensor) -> Parameter:
        loss, gradients = differentiate(ids, labels)
        optimizer(ops.clip_by_global_norm(gradients, 1.0))
        return loss

    def run(batch: np.ndarray) -> None:
        ids, labels = (np.ascontiguousarray(part) for part in (batch[:, :-1], batch[:, 1:]))
        step(Tensor(ids), Tensor(labels)).asnumpy()

    return run
