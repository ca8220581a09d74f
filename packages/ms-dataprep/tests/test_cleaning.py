import json

import pytest
from ms_dataprep import cleaning
from ms_dataprep.cleaning import Cleaner, choose_steps
from ms_dataprep.config import DataConfig
from ms_dataprep.errors import ConfigError


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


@pytest.mark.parametrize(
    ("options", "text", "cleaned"),
    [
        ({"unicode_form": "nfkc"}, "ﬁ１２ｱ", "fi12ア"),
        ({"remove_html": True}, "<p class=x>a &amp; b</p><!-- no --><script>x<1</script> c<br/>", "a & b c"),
        (
            {"remove_html": True},
            "vector<int> if a < b && c > d; List<String>",
            "vector<int> if a < b && c > d; List<String>",
        ),
        ({"remove_html": True}, "<!-- never ends <script> &lt;", "<!-- never ends <script> <"),
        ({"fix_mojibake": True}, "schÃ¶n", "schön"),
        ({"fold_full_width": True}, "ＡＢｃ１２，。！", "ABc12，。！"),
        ({"chinese_script": "simplified"}, "漢字與繁體", "汉字与繁体"),
        ({"chinese_script": "traditional"}, "汉字", "漢字"),
        (
            {"mask_personal_data": True},
            "邮箱a.b@x.com，电话13812345678或+86 138-1234-5678。",
            "邮箱<email>，电话<phone>或<phone>。",
        ),
        (
            {"mask_personal_data": True},
            "身份证11010519491231002X，地址192.168.1.254。",
            "身份证<id_number>，地址<ip>。",
        ),
        (
            {"mask_personal_data": True},
            "110105194912310021 1.2.3 v1.2.3.4.5 2024-01-02",
            "110105194912310021 1.2.3 v1.2.3.4.5 2024-01-02",
        ),
        ({"own_steps": ("textwrap.dedent",)}, "  a\n  b", "a\nb"),
        ({"cleaning": "none"}, " a\r\n\x00\ud83d", " a\r\n\x00\ufffd"),
    ],
)
def test_an_optional_step_does_its_work_and_is_counted(options: dict, text: str, cleaned: str) -> None:
    cleaner = Cleaner(choose_steps(DataConfig(seq_length=8, **options)))

    assert cleaner.clean(text) == cleaned
    assert sum(cleaner.changed.values()) == (text != cleaned)


def test_every_character_is_treated_as_the_plain_patterns_say() -> None:
    """The steps look for bytes before they search; that must miss nothing."""
    for code in [*range(0x3100), *range(0xD700, 0x10000), 0x1F600]:
        for text in (
            f"a{chr(code)}b",
            f"x{chr(code)}\ny" + "春天" * (code % 3 * 400),
            f"z{chr(code)}" + "a" * 1000 + chr(code),
        ):
            assert cleaning.unify_line_ends(text) == cleaning._LINE_ENDS.sub("\n", text)
            assert cleaning.remove_control_characters(text) == cleaning._CONTROL.sub("", text)
            assert cleaning.trim(text) == "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def test_a_step_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ConfigError, match=r"own_steps: 'textwrap.nothing' cannot be imported"):
        choose_steps(DataConfig(seq_length=8, own_steps=("textwrap.nothing",)))


def test_hidden_html_without_end_takes_linear_time() -> None:
    text = "<!-- <script <style>" * 200_000

    assert Cleaner(choose_steps(DataConfig(seq_length=8, remove_html=True))).clean(text)
