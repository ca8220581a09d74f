import json

import pytest
from ms_dataprep.cleaning import Cleaner


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
        ("a\x00b\u200bc\ufeffd\x1be", "abcde"),
        ("cafe\u0301", "café"),
        ("one  \n  two\t\n\n", "one\n  two"),
        ("１２３ＡＢＣ。！？", "１２３ＡＢＣ。！？"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        (json.loads('"a\\ud83d"'), "a\ufffd"),
        (json.loads('"\\ud83d\\ude00"'), "😀"),
        (" \n\t\n ", ""),
    ],
)
def test_a_text_is_cleaned_and_cleaning_it_again_changes_nothing(text: str, cleaned: str) -> None:
    cleaner = Cleaner()

    assert cleaner.clean(text) == cleaned
    assert Cleaner().clean(cleaned) == cleaned


def test_each_step_counts_the_documents_it_changed() -> None:
    cleaner = Cleaner()

    for text in ("plain", "a\r\nb", "c\r\nd \n", "e\x00"):
        cleaner.clean(text)

    assert cleaner.changed == {
        "surrogates": 0,
        "line_ends": 2,
        "control_characters": 1,
        "nfc": 0,
        "white_space": 1,
    }


def test_a_clean_chinese_paragraph_stays_as_it_is() -> None:
    paragraph = "人工智能正在改变世界。研究者们提出了许多新的方法！这些方法有效吗？" * 9

    assert Cleaner().clean(paragraph) == paragraph


def test_megabytes_of_blanks_take_no_time_to_speak_of() -> None:
    assert Cleaner().clean("a" + " " * 5_000_000 + "b") == "a" + " " * 5_000_000 + "b"
    assert Cleaner().clean("a" + " " * 5_000_000) == "a"
