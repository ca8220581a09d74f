"""Greedy decoding and prefill in fp32: Llama style, 4 layers, hidden 256, 4 heads, vocabulary 8192.

Decoding is the text of 96 new ids after prompts of 32, prefill excluded on both sides; transformers decodes in its own
cached loop, without `generate` around it, which would only slow it down. Prefill is one call up to the first id.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

FIGURES = {
    "decode_b1_vs_transformers": ("decode_1", "transformers_decode_1"),
    "decode_b8_vs_transformers": ("decode_8", "transformers_decode_8"),
    "prefill_512_vs_transformers": ("prefill_512", "transformers_prefill_512"),
    "prefill_32_vs_transformers": ("prefill_32", "transformers_prefill_32"),
}
UNIT = "tokens/s"
VOCAB, HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 8192, 256, 4, 4, 688, 1024
PROMPT, NEW = 32, 96
WARMUP, RUNS = 3, 25


def measure(contender: str) -> float:
    """Returns tokens per second: new ones over all rows for `decode_BATCH`, read ones for `prefill_LENGTH`."""
    kind, number = contender.removeprefix("transformers_").split("_")
    rows, length = (int(number), PROMPT) if kind == "decode" else (1, int(number))
    ids = np.random.default_rng(0).integers(0, VOCAB, (rows, length), dtype=np.int32)
    make = _transformers if contender.startswith("transformers_") else _product
    run = make(ids, kind)
    times = [run() for _ in range(WARMUP + RUNS)]
    tokens = rows * (NEW - 1) if kind == "decode" else length
    return tokens / statistics.median(times[WARMUP:])


def _product(ids: np.ndarray, kind: str) -> Callable[[], float]:
    import mindspore
    from ms_gptmodel import CachedDecoder, GenerationConfig, LanguageModel, ModelConfig, generation

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    config = ModelConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INNER, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    decoder = CachedDecoder(LanguageModel(config, seed=0), slots=len(ids) + 1, max_length=POSITIONS)
    options = GenerationConfig(max_new_tokens=NEW if kind == "decode" else 1)

    def run() -> float:
        start = first = time.perf_counter()
        for _piece in generation.stream(decoder, ids.tolist(), options):
            if first == start:
                first = time.perf_counter()  # what prefill gave
        return time.perf_counter() - first if kind == "decode" else first - start

    return run


def _transformers(ids: np.ndarray, kind: str) -> Callable[[], float]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(2)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=INNER, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompts = torch.from_numpy(ids.astype(np.int64))

    @torch.inference_mode()
    def run() -> float:
        start = time.perf_counter()
        output = model(input_ids=prompts, use_cache=True, logits_to_keep=1)
        chosen = output.logits[:, -1].argmax(-1, keepdim=True)
        first = time.perf_counter()
        if kind != "decode":
            return first - start
        new = [chosen]
        for _ in range(NEW - 1):
            output = model(input_ids=new[-1], past_key_values=output.past_key_values, use_cache=True)
            new.append(output.logits[:, -1].argmax(-1, keepdim=True))
        torch.cat(new, 1).tolist()
        return time.perf_counter() - first

    return run
