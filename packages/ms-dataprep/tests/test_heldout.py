import json

import ms_dataprep
import pytest
from ms_dataprep.errors import SourceError
from ms_dataprep.heldout import HeldoutNgrams

ENGLISH = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
CHINESE = "人之初性本善性相近习相远苟不教性乃迁教之道贵以专"


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_a_shared_run_is_found_whatever_case_and_punctuation(text: str) -> None:
    heldout = HeldoutNgrams([text], 13)
    step = 1 if " " not in text else 5

    assert heldout.count_shared(text) > 1
    assert heldout.count_shared("before, " + text.upper().replace(" ", ",  ") + "; after") > 1
    assert heldout.count_shared(text[: 13 * step // 2]) == 0
    assert (
        heldout.count_shared("quite another text of more than thirteen words that says nothing of what was held") == 0
    )


def test_a_short_held_out_text_counts_as_a_whole() -> None:
    heldout = HeldoutNgrams(["what is the capital city of the country of France", "too short"], 13)

    assert heldout.count_shared("Q: What is the capital city of the country of France? A: Paris") == 1
    assert heldout.count_shared("this is too short") == 0


def test_contaminated_documents_are_dropped_and_listed(build_dataset, tmp_path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": CHINESE}) + "\n" + json.dumps({"text": ENGLISH}) + "\n")

    folder = build_dataset(
        "clean", f"found: {CHINESE}!", ENGLISH, heldout=(str(tmp_path / "test.jsonl"),), lists_dropped=True
    )

    assert ms_dataprep.read_manifest(folder).dropped == {"heldout": 2}
    first = json.loads((folder / "dropped.jsonl").read_text("utf-8").splitlines()[0])
    assert (first["line"], first["rule"], first["threshold"]) == (2, "heldout", 0)
    assert first["value"] >= 1


def test_a_held_out_line_that_cannot_be_read_stops_the_build(build_dataset, tmp_path) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "ok"}\n{"text": 1}\n')

    with pytest.raises(SourceError, match=r"heldout: .*test\.jsonl:2: 'text': expected a string"):
        build_dataset("a", heldout=(str(tmp_path / "test.jsonl"),))
