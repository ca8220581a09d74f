import subprocess
import sys
import threading
from dataclasses import replace

import ms_export
import numpy as np
import pytest
from ms_export.errors import PromptError
from safetensors.numpy import load_file

PROMPTS = [[5, 3, 8], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [60, 61, 62, 63]]


def _reference(folder, ids):
    """Logits `[len(ids), vocab]` of the toy model, straight from the weights, in numpy and float64, without a cache."""
    w = {name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()}
    x = w["embedding.weight"][ids] + w["position_embedding.weight"][: len(ids)]
    q, k, v = ((x @ w[f"blocks.0.attention.{n}.weight"].T).reshape(len(ids), 2, 16) for n in ("query", "key", "value"))
    scores = np.einsum("qhd,khd->hqk", q, k) / 4
    scores[:, ~np.tri(len(ids), dtype=bool)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v).reshape(len(ids), 32)
    return (x + mixed @ w["blocks.0.attention.output.weight"].T) @ w["lm_head.weight"].T


def _greedy(folder, prompt, count, max_length=16):
    ids = list(prompt)
    while len(ids) < min(len(prompt) + count, max_length):
        ids.append(int(_reference(folder, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_logits_equal_an_independent_float64_model_without_a_cache(bundle, runtime):
    for prompt in PROMPTS:
        ids = [*prompt, 9, 17, 33, 2]
        expected = _reference(bundle, ids)[len(prompt) - 1 :]

        found = [runtime.prefill([prompt], [1])[0]]
        found += [runtime.decode([i], [len(prompt) + n], [1])[0] for n, i in enumerate(ids[len(prompt) :])]

        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_greedy_generation_equals_recomputing_without_a_cache(bundle, runtime):
    for prompt in PROMPTS:
        generation = runtime.generate([prompt], max_new_tokens=10, eos_token_ids=())[0]

        assert generation.ids == _greedy(bundle, prompt, 10)
        assert generation.finish_reason == "length"


def test_a_second_prompt_is_not_polluted_by_the_first(bundle, runtime):
    long, short = PROMPTS[2], [9]
    runtime.generate([long], max_new_tokens=10)

    after = runtime.prefill([short], [0])
    then = runtime.decode([4], [1], [0])

    fresh = ms_export.Runtime(bundle)
    assert np.array_equal(after, fresh.prefill([short], [0]))
    assert np.array_equal(then, fresh.decode([4], [1], [0]))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "top_p": 0.9}])
def test_prompts_of_unequal_length_in_a_batch_each_get_what_they_get_alone(runtime, options):
    """More prompts than slots, so that lanes are reused while others go on."""
    prompts = [*PROMPTS, [33], [44, 45], *PROMPTS[:3]]

    together = runtime.generate(prompts, max_new_tokens=7, seed=5, **options)

    alone = [runtime.generate([p], max_new_tokens=7, seed=5 + n, **options)[0] for n, p in enumerate(prompts)]
    assert together == alone
    assert len({tuple(g.ids) for g in together}) > 3


def test_more_lanes_than_the_largest_decode_graph_run_in_several_calls(bundle, runtime):
    runtime.prefill([[5], [6], [7]], [0, 1, 2])
    graph = next(g for g in runtime.bundle.graphs_of("decode") if g.batch == 1)
    one_by_one = np.concatenate([runtime.call_decode(graph, [i], [1], [s]) for s, i in enumerate([11, 12, 13])])

    np.testing.assert_allclose(runtime.decode([11, 12, 13], [1, 1, 1], [0, 1, 2]), one_by_one, atol=1e-5)


def test_a_prefill_graph_of_several_prompts_fills_its_lanes(toy, small, tmp_path, bundle):
    pairs = replace(small, prefill_batch=2)
    folder = ms_export.build(tmp_path / "pairs", model=toy.cached_model(pairs), config=pairs)
    prompts = [[5, 3, 8], [7], [1, 2, 3, 4, 5, 6]]

    logits = ms_export.Runtime(folder).prefill(prompts, [0, 1, 2])

    np.testing.assert_allclose(logits, [_reference(bundle, p)[-1] for p in prompts], atol=1e-5)


def test_generation_stops_at_the_end_of_the_cache_and_says_so(bundle, runtime):
    prompt = PROMPTS[2]

    generation = runtime.generate([prompt], max_new_tokens=100, eos_token_ids=())[0]

    assert generation.ids == _greedy(bundle, prompt, 100)
    assert len(prompt) + len(generation.ids) == 16
    assert generation.finish_reason == "length"


def test_any_of_several_end_ids_ends_a_text_and_is_not_part_of_it(bundle, runtime):
    ids = _greedy(bundle, [5, 3, 8], 8)
    end = ids[-1]
    before = ids[: ids.index(end)]
    assert before

    generation = runtime.generate([[5, 3, 8]], max_new_tokens=8, eos_token_ids=[99999, end])[0]

    assert generation == ms_export.Generation(ids=before, finish_reason="stop")


def test_the_same_seed_gives_the_same_ids_and_another_seed_others(runtime):
    def draw(seed):
        return runtime.generate([[5]], max_new_tokens=8, temperature=2.0, seed=seed, eos_token_ids=())[0].ids

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_interleaved_streams_use_slots_of_their_own_and_give_them_back(runtime):
    alone = [runtime.generate([p], max_new_tokens=4, eos_token_ids=())[0].ids for p in ([5, 3], [7])]
    streams = [runtime.stream([p], max_new_tokens=4, eos_token_ids=()) for p in ([5, 3], [7])]

    ids = [[], []]
    for tokens in zip(*streams, strict=True):
        for n, token in enumerate(tokens):
            ids[n].append(token.id)

    assert ids == alone
    held = [runtime.stream([[1]]) for _ in range(4)]
    for stream in held[:3]:
        next(stream)
    with pytest.raises(PromptError, match="all 3 slots are in use"):
        next(held[3])
    for stream in held:
        stream.close()
    assert len(runtime.generate([[1], [2], [3]], max_new_tokens=2)) == 3


def test_threads_do_not_disturb_one_another(runtime):
    prompts = [[5, 3], [7], [9, 9, 9]]
    alone = [runtime.generate([p], max_new_tokens=8)[0] for p in prompts]
    found = {}

    def work(n):
        found[n] = [runtime.generate([prompts[n]], max_new_tokens=8)[0] for _ in range(5)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {n: [alone[n]] * 5 for n in range(3)}


def test_a_stop_function_ends_one_prompt_only(runtime):
    generations = runtime.generate(
        [[5, 3], [7]], max_new_tokens=4, eos_token_ids=(), stop=lambda prompt, token: prompt == 1
    )

    assert [(len(g.ids), g.finish_reason) for g in generations] == [(4, "length"), (1, "stop")]


def test_no_prompts_give_nothing(runtime):
    assert runtime.generate([]) == []


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ([[1], []], "prompt 1: is empty; expected 1 to 12 ids"),
        ([[1] * 13], "prompt 0: 13 ids, but the bundle's longest prefill graph takes 12"),
        ([[64]], "prompt 0: id 64 is outside the vocabulary of 64"),
        ([[3, -1]], "prompt 0: id -1 is outside"),
        ([[1.0, 2.0]], "prompt 0: expected whole numbers, found float64"),
        ([["a"]], "prompt 0: expected whole numbers"),
        ([[True]], "prompt 0: expected whole numbers, found bool"),
        ([[[1, 2]]], "prompt 0: expected one row of ids, found shape [1, 2]"),
        ([[[1], [1, 2]]], "prompt 0: expected one row of ids"),
        ([5], "prompt 0: expected a list of ids, found 5"),
        (["text"], "prompt 0: expected a list of ids, found 'text'"),
        ("text", "use generate_text"),
    ],
)
def test_a_wrong_prompt_is_refused_by_name(runtime, prompts, named):
    with pytest.raises(PromptError) as error:
        runtime.generate(prompts)

    assert named in str(error.value)


def test_arrays_of_any_integer_type_are_prompts(runtime):
    prompts = [np.array([5, 3, 8], dtype) for dtype in (np.int64, np.uint8, np.int32)]

    assert len({tuple(g.ids) for g in runtime.generate(prompts)}) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"top_p": 2}, "top_p"),
    ],
)
def test_a_wrong_option_is_refused_by_name(runtime, options, named):
    with pytest.raises(PromptError, match=named):
        runtime.generate([[1]], **options)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda r: r.prefill([[1]], [3]), "slots: expected 0 to 2, found 3"),
        (lambda r: r.prefill([[1], [2]], [1, 1]), "slots: expected each once"),
        (lambda r: r.prefill([[1]], []), "slots: expected one for each of 1 lanes, found 0"),
        (lambda r: r.decode([1], [16], [0]), "positions: expected 0 to 15, found 16"),
        (lambda r: r.decode([1], [-1], [0]), "positions: expected 0 to 15, found -1"),
        (lambda r: r.decode([1], [], [0]), "positions: expected one for each"),
        (lambda r: r.decode([64], [1], [0]), "id 64 is outside"),
        (lambda r: r.decode([1.5], [1], [0]), "expected whole numbers"),
    ],
)
def test_a_wrong_lane_is_refused_by_name(runtime, call, named):
    with pytest.raises(PromptError) as error:
        call(runtime)

    assert named in str(error.value)


def test_a_bundle_generates_where_no_model_code_can_be_imported(bundle, runtime, toy, tmp_path):
    """In a process of its own that has the bundle alone; the module that defined the Cells is out of reach."""
    program = f"""
import importlib.util, sys
assert importlib.util.find_spec({toy.__name__!r}) is None
import ms_export
runtime = ms_export.Runtime({str(bundle)!r})
print([g.ids for g in runtime.generate({PROMPTS!r}, max_new_tokens=5, eos_token_ids=())])
assert not [name for name in sys.modules if name.startswith("ms_") and name.split(".")[0] != "ms_export"]
assert "tokenizers" not in sys.modules
"""

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    expected = [g.ids for g in runtime.generate(PROMPTS, max_new_tokens=5, eos_token_ids=())]
    assert done.stdout.strip() == str(expected)
