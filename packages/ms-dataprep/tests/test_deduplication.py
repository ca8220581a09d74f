import json
import random
import resource
from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.shingles import MinHasher, choose_bands, hash_bands, hash_shingles, probability_of_meeting
from ms_dataprep.words import TextParts

WORDS = [f"word{number}" for number in range(3000)]


def make_words(count: int, seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def read_dropped(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "dropped.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("language", ["english", "chinese"])
def test_ten_copies_two_of_them_with_one_change_are_one_document(build_dataset, language: str) -> None:
    if language == "english":
        words = make_words(200, 1)
        original, changed = " ".join(words), [" ".join([*words[:100], new, *words[101:]]) for new in ("x1", "x2")]
        others = [" ".join(make_words(200, seed)) for seed in (2, 3)]
    else:
        alphabet = [chr(0x4E00 + number) for number in range(2000)]
        texts = ["".join(random.Random(seed).choices(alphabet, k=200)) for seed in (1, 2, 3)]
        original, others = texts[0], texts[1:]
        changed = [original[:100] + new + original[101:] for new in "天地"]
    copies = [original] * 5 + [changed[0]] + [original] * 2 + [changed[1]] + [original]

    folder = build_dataset(*copies, *others, dedup="near", lists_dropped=True, seq_length=2048, packing="one_per_row")

    manifest = ms_dataprep.read_manifest(folder)
    assert manifest.documents == 3
    assert manifest.dropped == {"duplicate": 7, "near_duplicate": 2}
    dropped = read_dropped(folder)
    assert {entry["cluster"] for entry in dropped} == {f"{folder}.jsonl:1"}
    assert [entry["line"] for entry in dropped] == list(range(2, 11))
    assert [entry["line"] for entry in dropped if entry["rule"] == "near_duplicate"] == [6, 9]
    assert json.loads((folder / "report.json").read_text())["clusters"] == {"10": 1}


def test_exact_copies_alone_are_looked_for_by_default(build_dataset) -> None:
    words = make_words(100, 1)
    folder = build_dataset(" ".join(words), " ".join(words), " ".join([*words[:-1], "other"]), seq_length=2048)

    assert ms_dataprep.read_manifest(folder).dropped == {"duplicate": 1}


def test_short_documents_are_not_lumped_together(build_dataset) -> None:
    verses = ["床前明月光", "疑是地上霜", "举头望明月", "低头思故乡", "roses are red", "roses are blue", "the end"]

    folder = build_dataset(*verses, dedup="near", seq_length=256)

    assert ms_dataprep.read_manifest(folder).documents == len(verses)


def pair_of_similarity(similarity: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of 400 shingle hashes that share as many as the Jaccard similarity asks for."""
    shared = round(400 * 2 * similarity / (1 + similarity))
    values = np.random.default_rng(seed).choice(1 << 32, 800 - shared, replace=False).astype(np.uint32)
    return np.sort(values[:400]), np.sort(values[400 - shared : 800 - shared])


@pytest.mark.parametrize("similarity", [0.9, 0.8, 0.5, 0.1])
def test_pairs_meet_as_often_as_the_banding_formula_says(similarity: float) -> None:
    hasher, (bands, rows) = MinHasher(), choose_bands(0.8)
    trials = 300

    met = 0
    agreeing = 0.0
    for seed in range(trials):
        first, second = (hasher.sign(part) for part in pair_of_similarity(similarity, seed))
        met += bool((hash_bands(first, bands, rows) == hash_bands(second, bands, rows)).any())
        agreeing += float((first == second).mean())

    expected = probability_of_meeting(similarity, bands, rows)
    spread = 4 * np.sqrt(max(expected * (1 - expected), 1 / trials) / trials)
    assert met / trials == pytest.approx(expected, abs=spread)
    assert agreeing / trials == pytest.approx(similarity, abs=0.02)


def test_a_pair_at_the_threshold_meets_with_95_percent() -> None:
    for threshold in (0.5, 0.7, 0.8, 0.9):
        bands, rows = choose_bands(threshold)
        assert bands * rows <= 128
        assert probability_of_meeting(threshold, bands, rows) >= 0.95


def test_planted_near_duplicates_are_found_and_no_others(build_dataset) -> None:
    texts, planted = [], set()
    for number in range(150):
        words = make_words(150, number)
        texts.append(" ".join(words))
        if number % 3 == 0:
            changed = list(words)
            changed[random.Random(number).randrange(150)] = "changed"
            planted.add(len(texts))
            texts.append(" ".join(changed))

    folder = build_dataset(*texts, dedup="near", lists_dropped=True, seq_length=2048)

    found = {entry["line"] - 1 for entry in read_dropped(folder)}
    assert len(found & planted) >= 0.95 * len(planted)
    assert found <= planted


def test_one_document_of_5_mb_does_not_take_100_mb_more() -> None:
    text = " ".join(make_words(600_000, 7))
    hasher = MinHasher()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    parts = TextParts(text)
    hasher.sign(hash_shingles(parts.words))

    assert len(text) > 5_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize(("kind", "joint"), [("line", "\n"), ("paragraph", "\n\n")])
def test_repeated_lines_and_paragraphs_stay_where_they_stood_first(build_dataset, tokenizer, kind, joint) -> None:
    banner = "All rights reserved by the publisher of this page."
    texts = [joint.join(["first text", banner]), joint.join([banner, "second text", "x", "x"]), banner]

    folder = build_dataset(*texts, dedup_lines=kind, packing="one_per_row", seq_length=128)

    from ms_dataprep.rows import Rows

    manifest = ms_dataprep.read_manifest(folder)
    rows = Rows(folder, manifest).read(np.arange(manifest.rows))
    kept = [tokenizer.decode(row[: row.tolist().index(tokenizer.eod_id)].tolist()) for row in rows]
    assert kept == [texts[0], joint.join(["second text", "x", "x"])]
    assert manifest.dropped == {"repeated_lines": 1}
