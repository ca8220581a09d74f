"""One whole training step in fp32: 4 layers, hidden 256, 4 heads, 8 rows of 256 ids, vocabulary 8192, AdamW."""

import statistics
import time
from collections.abc import Callable

import numpy as np

FIGURES = {
    "llama_vs_transformers": ("llama", "transformers_llama"),
    "gpt2_vs_torch_eager": ("gpt2", "transformers_gpt2"),
}
UNIT = "tokens/s"
BATCH, LENGTH, VOCAB, HIDDEN, LAYERS, HEADS = 8, 256, 8192, 256, 4, 4
WARMUP, STEPS = 3, 12


def measure(contender: str) -> float:
    """Returns tokens per second: the median step after warm-up (compilation is not counted)."""
    rng = np.random.default_rng(0)
    batches = rng.integers(0, VOCAB, (WARMUP + STEPS, BATCH, LENGTH + 1), dtype=np.int32)
    family = contender.removeprefix("transformers_")
    step = _transformers_step(family) if contender.startswith("transformers_") else _product_step(family)
    times = []
    for rows in batches:
        start = time.perf_counter()
        step(rows)
        times.append(time.perf_counter() - start)
    return BATCH * LENGTH / statistics.median(times[WARMUP:])


def _product_step(family: str) -> Callable[[np.ndarray], None]:
    from ms_gptmodel import LanguageModel, ModelConfig, named_parameters
    from ms_trainloop import TrainConfig, TrainStep

    sizes = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "max_position_embeddings": LENGTH,
    }  # fmt: skip
    if family == "gpt2":
        switches = {
            "intermediate_size": 4 * HIDDEN, "norm_kind": "layer_norm", "norm_bias": True, "position_kind": "learned",
            "hidden_act": "gelu_new", "gated_mlp": False, "attention_bias": True, "attention_output_bias": True,
            "mlp_bias": True, "tie_word_embeddings": True,
        }  # fmt: skip
    else:
        switches = {"intermediate_size": 688}
    model = LanguageModel(ModelConfig.from_mapping({**sizes, **switches}), seed=0)
    config = TrainConfig(
        steps=1000, global_batch_size=BATCH, micro_batch_size=BATCH, learning_rate=1e-4, warmup_steps=10
    )
    step = TrainStep(model, config, parameters=named_parameters(model))
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (BATCH, LENGTH)).copy()
    segments = np.ones((BATCH, LENGTH), np.int32)

    def run(rows: np.ndarray) -> None:
        batch = {
            "input_ids": np.ascontiguousarray(rows[:, :-1]), "labels": np.ascontiguousarray(rows[:, 1:]),
            "position_ids": positions, "segment_ids": segments,
        }  # fmt: skip
        step.run(batch)  # fetches the loss, so the step has ended

    return run


def _transformers_step(family: str) -> Callable[[np.ndarray], None]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(2)
    if family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH,
                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        )  # fmt: skip
    else:
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                        intermediate_size=688, max_position_embeddings=LENGTH)
        )  # fmt: skip
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def run(rows: np.ndarray) -> None:
        ids = torch.from_numpy(rows.astype(np.int64))
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return run
