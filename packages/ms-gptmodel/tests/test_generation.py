"""Cached decoding: equal to the uncached model, slot by slot; sampling; stopping; refusals."""

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from ms_gptmodel import (
    CachedDecoder,
    Generation,
    GenerationConfig,
    InputError,
    LanguageModel,
    ModelConfig,
    generate,
    load_config,
    load_weights,
    named_parameters,
    stream,
)
from ms_gptmodel.lane import Lane

PROMPTS = [[5], [7, 3], [1, 2, 3, 4, 5, 6, 7]]


@pytest.fixture(scope="module")
def decoder_of(families, random_weights):
    made = {}

    def make(name):
        if name not in made:
            model = LanguageModel(ModelConfig.from_mapping({**families[name], "max_position_embeddings": 48}))
            # Larger than elsewhere, so that greedy texts do not fall into a constant.
            load_weights(model, {key: value * 3 for key, value in random_weights(model).items()})
            made[name] = CachedDecoder(model, slots=4, max_length=40)
        return made[name]

    return make


def uncached_greedy(model, prompt, count):
    ids = list(prompt)
    for _ in range(count):
        padded = np.zeros((1, 40), np.int32)
        padded[0, : len(ids)] = ids
        ids.append(int(model(Tensor(padded)).asnumpy()[0, len(ids) - 1].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "sliding"])
@pytest.mark.slow
def test_greedy_texts_with_and_without_cache_are_equal(family, decoder_of):
    decoder = decoder_of(family)

    results = generate(decoder, PROMPTS, GenerationConfig(max_new_tokens=30))

    assert results == [Generation(uncached_greedy(decoder.model, prompt, 30), "length") for prompt in PROMPTS]
    assert len({result.ids for result in results}) == 3
    assert all(len(set(result.ids)) > 5 for result in results)


@pytest.mark.parametrize("family", ["llama", "alibi"])
@pytest.mark.slow
def test_decode_logits_equal_the_model_in_any_slot_order_and_window(family, decoder_of):
    decoder = decoder_of(family)
    ids = np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32)
    full = decoder.model(Tensor(ids)).asnumpy()
    lengths, slots = np.array([6, 4], np.int32), np.array([2, 0], np.int32)

    prefilled = decoder.prefill(Tensor(ids[:, :8]), Tensor(lengths), Tensor(slots)).asnumpy()
    decoded = decoder.decode(Tensor(np.array([[ids[0, 6]], [ids[1, 4]]])), Tensor(lengths), Tensor(slots)).asnumpy()
    swapped = decoder.decode_cell(16)(
        Tensor(np.array([[ids[1, 5]], [ids[0, 7]], [0]], np.int32)),
        Tensor(np.array([5, 7, 0], np.int32)),
        Tensor(np.array([0, 2, 3], np.int32)),
    ).asnumpy()

    np.testing.assert_allclose(prefilled, full[[0, 1], [5, 3]], rtol=0, atol=1e-4)
    np.testing.assert_allclose(decoded, full[[0, 1], [6, 4]], rtol=0, atol=1e-4)
    np.testing.assert_allclose(swapped[:2], full[[1, 0], [5, 7]], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_second_prompt_is_not_polluted_by_the_first(decoder_of):
    decoder = decoder_of("gpt2")
    config = GenerationConfig(max_new_tokens=12)
    alone = generate(decoder, [[9, 8]], config)

    generate(decoder, [list(range(1, 25))], config)

    assert generate(decoder, [[9, 8]], config) == alone


@pytest.mark.slow
def test_each_prompt_of_a_batch_gets_what_it_gets_alone_also_when_sampled(decoder_of):
    decoder = decoder_of("llama")
    config = GenerationConfig(max_new_tokens=8, temperature=1.0, top_k=20, top_p=0.9, seed=4)
    prompts = [[5], [7, 3], [1, 2, 3], [9], [11, 12]]  # more than the decoder has slots

    together = generate(decoder, prompts, config)

    assert generate(decoder, prompts[:1], config) == together[:1]
    assert generate(decoder, prompts, config) == together
    assert generate(decoder, prompts, GenerationConfig(max_new_tokens=8, temperature=1.0, seed=5)) != together


def test_any_of_several_end_ids_stops_a_text_before_it(decoder_of):
    decoder = decoder_of("llama")
    free = generate(decoder, [PROMPTS[2]], GenerationConfig(max_new_tokens=20))[0].ids
    end = next(i for i in free[3:] if i not in free[:3])

    stopped = generate(decoder, [PROMPTS[2]], GenerationConfig(max_new_tokens=20, eos_token_ids=(60, end)))[0]

    assert stopped == Generation(free[: free.index(end)], "stop")


def test_text_stops_at_the_decoders_length_and_never_beyond(decoder_of):
    decoder = decoder_of("llama")
    prompts = [[1] * 40, [1] * 38, [2, 3]]

    results = generate(decoder, prompts, GenerationConfig(max_new_tokens=39))

    assert [len(result.ids) for result in results] == [0, 2, 38]
    assert {result.finish_reason for result in results} == {"length"}
    assert results[2].ids == uncached_greedy(decoder.model, [2, 3], 38)


@pytest.mark.slow
def test_weights_changed_after_the_decoder_was_made_are_used(families):
    model = LanguageModel(ModelConfig.from_mapping({**families["gpt2"], "num_hidden_layers": 1}), seed=1)
    decoder = CachedDecoder(model, slots=2, max_length=16)
    generate(decoder, [[3]], GenerationConfig(max_new_tokens=2))

    model.norm.bias.set_data(Tensor(model.embedding.weight.asnumpy()[17] * 1000))

    assert generate(decoder, [[3]], GenerationConfig(max_new_tokens=2))[0].ids == (17, 17)
    assert generate(decoder, [[3]], GenerationConfig(max_new_tokens=9))[0].ids == (17,) * 9
    load_weights(model, {name: p.asnumpy().copy() for name, p in named_parameters(model).items()})
    model.norm.bias.set_data(Tensor(model.embedding.weight.asnumpy()[19] * 1000))
    assert generate(decoder, [[3]], GenerationConfig(max_new_tokens=9))[0].ids == (19,) * 9


def test_parameters_of_both_cells_have_their_contract_names_also_after_wrapping(families):
    class Wrapper(nn.Cell):
        def __init__(self, inner):
            super().__init__()
            self.network = inner

    model = LanguageModel(ModelConfig.from_mapping(families["llama"]))
    Wrapper(Wrapper(model))

    decoder = CachedDecoder(model, slots=3, max_length=32)

    expected = [*named_parameters(model), "cache.0.key", "cache.0.value", "cache.1.key", "cache.1.value"]
    for cell in (decoder.prefill_cell(), decoder.decode_cell(16), decoder.decode):
        assert sorted(p.name for p in cell.get_parameters()) == sorted(expected)
    assert not any(p.requires_grad for p in decoder.cache_parameters.values())


def test_cache_rows_are_those_of_the_golden_file(contracts, random_weights):
    golden = json.loads((contracts / "model" / "golden" / "cache_rows.json").read_text())
    model = LanguageModel(load_config(contracts / "model" / "golden" / "llama" / "config.json"))
    load_weights(model, random_weights(model))
    decoder = CachedDecoder(model, slots=golden["slots"], max_length=golden["max_length"])
    caches = decoder.cache_parameters
    assert list(caches) == golden["parameters"]
    assert all(list(cache.shape) == golden["shape"] for cache in caches.values())

    for row in golden["rows"]:
        before = {name: cache.asnumpy().copy() for name, cache in caches.items()}
        slot, position = (Tensor(np.array([row[key]], np.int32)) for key in ("slot", "position"))
        decoder.decode(Tensor(np.array([[7 + row["position"]]], np.int32)), position, slot)

        for name, cache in caches.items():
            written = np.flatnonzero((cache.asnumpy() != before[name]).any(1))
            heads = np.arange(golden["num_key_value_heads"])
            starts = (row["slot"] * golden["num_key_value_heads"] + heads) * golden["max_length"]
            assert set(written) <= set(starts + row["position"])
        assert row["row"] in starts + row["position"]
        assert np.abs(caches["cache.1.value"].asnumpy()[row["row"]]).max() > 0


@pytest.mark.slow
def test_exported_graphs_give_the_same_logits(decoder_of, tmp_path):
    decoder = decoder_of("llama")
    inputs = {
        "prefill": [np.array([[3, 4, 5, 0]]), np.array([3]), np.array([1])],
        "decode": [np.array([[9]]), np.array([3]), np.array([1])],
    }

    for name, arrays in inputs.items():
        cell = getattr(decoder, name)
        tensors = [Tensor(array.astype(np.int32)) for array in arrays]
        expected = cell(*tensors).asnumpy()
        ms.export(cell, *tensors, file_name=str(tmp_path / name), file_format="MINDIR")
        graph = nn.GraphCell(ms.load(str(tmp_path / f"{name}.mindir")))

        np.testing.assert_array_equal(graph(*tensors).asnumpy(), expected)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], r"prompts\[1\]: expected 1 to 40 ids, found no id"),
        ([[1] * 41], r"prompts\[0\]: expected 1 to 40 ids, found 41 ids"),
        ([[1, 61]], r"input_ids\[0, 1\] is 61: expected 0 to 60"),
        ([[-1]], r"input_ids\[0, 0\] is -1"),
    ],
)
def test_an_impossible_prompt_is_refused(prompts, message, decoder_of):
    with pytest.raises(InputError, match=message):
        generate(decoder_of("llama"), prompts)


def test_an_impossible_decoder_is_refused(model_of):
    model, _ = model_of("llama")

    with pytest.raises(InputError, match="max_length: expected 1 to max_position_embeddings 64, found 65"):
        CachedDecoder(model, slots=2, max_length=65)
    with pytest.raises(InputError, match="slots: expected 2 or more"):
        CachedDecoder(model, slots=1, max_length=8)
    with pytest.raises(InputError, match="window: expected 1 to max_length 8, found 9"):
        CachedDecoder(model, slots=2, max_length=8).decode_cell(9)


def test_padded_ids_are_never_produced(decoder_of):
    config = GenerationConfig(max_new_tokens=20, temperature=100.0, vocab_size=3)

    assert set(generate(decoder_of("llama"), [[1]], config)[0].ids) == {0, 1, 2}


def as_text(ids):
    """A toy tokenizer: every id is the two letters of its number in base 8, so that texts are easy to cut."""
    return "".join(f"{'abcdefgh'[i // 8]}{'abcdefgh'[i % 8]}" for i in ids)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 30}])
def test_pieces_of_a_stream_are_together_what_generate_gives(options, decoder_of):
    decoder = decoder_of("llama")
    config = GenerationConfig(max_new_tokens=20, **options)
    prompts = [[5], [7, 3], [1, 2, 3], [9]]  # more than the decoder has slots

    pieces = list(stream(decoder, prompts, config, decode_text=as_text))

    whole = generate(decoder, prompts, config, decode_text=as_text)
    for index, expected in enumerate(whole):
        mine = [piece for piece in pieces if piece.index == index]
        assert tuple(i for piece in mine for i in piece.ids) == expected.ids
        assert "".join(piece.text for piece in mine) == expected.text == as_text(expected.ids)
        assert [bool(piece.finish_reason) for piece in mine] == [False] * (len(mine) - 1) + [True]
        assert len(mine) >= (20 if options else 4)
        assert len(mine[0].ids) == 1


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 30}])
def test_a_stop_string_ends_a_text_and_is_never_shown(options, decoder_of):
    decoder = decoder_of("llama")
    free = generate(decoder, [PROMPTS[2]], GenerationConfig(max_new_tokens=24, **options), decode_text=as_text)[0]
    stop = free.text[13:18]  # begins and ends inside of ids
    config = GenerationConfig(max_new_tokens=24, stop_strings=[stop, "never"], **options)

    stopped = generate(decoder, [PROMPTS[2]], config, decode_text=as_text)[0]
    pieces = list(stream(decoder, [PROMPTS[2]], config, decode_text=as_text))

    assert stopped.finish_reason == pieces[-1].finish_reason == "stop"
    assert stopped.text == free.text[: free.text.index(stop)] == "".join(piece.text for piece in pieces)
    assert len(stopped.ids) < 12


def test_characters_that_are_not_whole_are_held_back():
    lane = Lane(
        0, [1], 50, set(), GenerationConfig(stop_strings=("END",)), lambda ids: bytes(ids).decode("utf-8", "replace")
    )
    shown = []
    for byte in "aé E EN \u4e2d.END!".encode():
        lane.add(byte)
        shown.append(lane.tell()[1])

    assert "".join(shown) == lane.text == "aé E EN \u4e2d."
    assert shown[1] == ""  # half of the accented letter
    assert lane.finish_reason == "stop"
    assert not any("\ufffd" in piece for piece in shown)


def test_stop_strings_need_text(decoder_of):
    with pytest.raises(InputError, match="stop_strings: give decode_text"):
        stream(decoder_of("llama"), [[1]], GenerationConfig(stop_strings=("x",)))


def test_broken_weights_are_named_also_in_the_greedy_loop(families):
    model = LanguageModel(ModelConfig.from_mapping({**families["gpt2"], "num_hidden_layers": 1}), seed=1)
    decoder = CachedDecoder(model, slots=2, max_length=16)
    pieces = stream(decoder, [[3]], GenerationConfig(max_new_tokens=12))
    next(pieces)

    model.norm.bias.set_data(Tensor(np.full(48, np.nan, np.float32)))

    with pytest.raises(InputError, match="logits: found NaN or infinity"):
        next(pieces)


def test_an_encoder_has_no_cache(families):
    model = LanguageModel(ModelConfig.from_mapping({**families["gpt2"], "is_causal": False, "num_hidden_layers": 1}))

    with pytest.raises(InputError, match="is_causal is false: an encoder sees later positions"):
        CachedDecoder(model, slots=2, max_length=8)
