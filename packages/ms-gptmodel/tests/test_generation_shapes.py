"""Static shapes: prompts up to a power of two share theirs, and all steps share one for each window."""

import mindspore as ms
import numpy as np
import pytest
from ms_gptmodel import CachedDecoder, GenerationConfig, LanguageModel, ModelConfig, generate


@pytest.fixture
def shapes(families, monkeypatch):
    """Generates after a prompt of some length beside one of one id; gives all shapes that cells were called with."""
    config = {**families["llama"], "num_hidden_layers": 1}
    decoder = CachedDecoder(LanguageModel(ModelConfig.from_mapping(config)), slots=3, max_length=64)
    options, seen = GenerationConfig(max_new_tokens=3, temperature=0.5, seed=1), set()

    def recorded(kind, cell):
        def call(*inputs):
            seen.add((kind, *(tuple(x.shape) for x in inputs)))
            return cell(*inputs)

        return call

    decode_cell = decoder.decode_cell
    monkeypatch.setattr(decoder, "prefill", recorded("prefill", decoder.prefill))
    monkeypatch.setattr(decoder, "decode_cell", lambda window: recorded(f"decode {window}", decode_cell(window)))

    def read(length):
        generate(decoder, [np.arange(length).tolist(), [1]], options)
        return set(seen)

    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield read
    ms.set_context(mode=ms.GRAPH_MODE)


def test_prompts_up_to_a_power_of_two_share_their_shapes_and_so_do_all_steps(shapes):
    prefill_16, prefill_32 = (("prefill", (2, n), (2,), (2,)) for n in (16, 32))
    decode_16, decode_32, decode_64 = ((f"decode {n}", (2, 1), (2,), (2,)) for n in (16, 32, 64))

    assert [shapes(n) for n in (1, 2, 7, 13)] == [{prefill_16, decode_16}] * 4
    # A step's window holds what will be written.
    assert [shapes(n) for n in (14, 15, 16)] == [{prefill_16, decode_16, decode_32}] * 3
    assert [shapes(n) for n in (17, 20, 29)] == [{prefill_16, prefill_32, decode_16, decode_32}] * 3
    assert shapes(30) == {prefill_16, prefill_32, decode_16, decode_32, decode_64}
