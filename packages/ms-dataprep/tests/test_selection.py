from ms_dataprep.selection import Selection


def test_only_the_first_of_equal_texts_is_kept() -> None:
    selection = Selection(dedup="exact", part="all", validation_share=0.0)

    assert [selection.drop_reason(text) for text in ("a", "b", "a", "A", "a")] == [
        None,
        None,
        "duplicate",
        None,
        "duplicate",
    ]
    assert Selection(dedup="none", part="all", validation_share=0.0).drop_reason("a") is None


def test_every_text_belongs_to_exactly_one_part_whatever_its_company() -> None:
    texts = [f"text {number}" for number in range(4000)]

    kept = {}
    for part in ("train", "validation"):
        selection = Selection(dedup="exact", part=part, validation_share=0.1)
        kept[part] = {text for text in texts if selection.drop_reason(text) is None}
    again = Selection(dedup="exact", part="validation", validation_share=0.1)

    assert kept["train"] | kept["validation"] == set(texts)
    assert not kept["train"] & kept["validation"]
    assert 300 < len(kept["validation"]) < 500
    assert {text for text in reversed(texts) if again.drop_reason(text) is None} == kept["validation"]
