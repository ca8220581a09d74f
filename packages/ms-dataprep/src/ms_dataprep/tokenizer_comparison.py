"""Compares two tokenizers: what makes their fingerprints differ, in ids that anyone can check."""

from collections.abc import Sequence

from ms_dataprep.fingerprint import probe_strings
from ms_dataprep.tokenizer import Tokenizer


def compare_tokenizers(first: Tokenizer, second: Tokenizer, texts: Sequence[str] = ()) -> list[str]:
    """Differences, one line each; empty when both tokenize alike. Probe strings and `texts` are encoded by both."""
    differences = []
    for name in ("vocab_size", "eod_id", "pad_id", "bos_id"):
        if (one := getattr(first, name)) != (two := getattr(second, name)):
            differences.append(f"{name}: {one} and {two}")
    everything = [*probe_strings(), *texts]
    pairs = zip(everything, first.encode_batch(everything), second.encode_batch(everything), strict=True)
    for text, one, two in pairs:
        if one.tolist() != two.tolist():
            place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
            differences.append(f"{text[:40]!r}: {len(one)} and {len(two)} ids, different from id number {place} on")
    if not differences and first.fingerprint != second.fingerprint:
        differences.append("same ids here, but vocabulary, merges, special tokens or normalizer differ")
    return differences
