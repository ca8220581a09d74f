import random

import pytest
from ms_dataprep.config import QUALITIES
from ms_dataprep.filters import find_drop
from ms_dataprep.words import TextParts

CHINESE = (
    "春天来了，山上的树木都换上了新的衣裳。小河里的冰已经化开，流水带着落叶向东边去。村里的老人坐在门前，看着孩子们在田野上跑。"
    "他们说今年的雨水很好，麦子长得比去年高。中午的时候，学校的钟声传到很远的地方，做工的人也停下来休息。"
    "一位年轻的老师从城市回到这里，他想把书本上的知识教给更多的人。晚上，窗户里有灯光，有人在读诗，有人在写信。"
    "月亮从云中出来，照着安静的路。远处的火车经过桥梁，声音慢慢消失在夜色之中。人们相信，明天又是晴朗的一天，"
    "工作虽然辛苦，可是生活总会变得更好。就这样，季节一个接着一个过去，故事也一代一代传了下来。"
    "后来有客人问起那座桥是谁修的，大家都笑了，因为每个家庭都出过力气，谁也不愿意独自说出名字！"
)
ENGLISH = """The harbour lies below the old town, and every morning the boats come in with the night's catch.
Fishermen carry their baskets up the narrow steps, where buyers have been waiting since before dawn.
A woman from the inn takes two of the largest fish, counts out her coins and complains about the price of salt.
Nobody answers her, because that complaint is older than the walls of the market.
By noon the square is empty again, except for cats that argue over heads and tails under the wooden tables.
Later in the year, when storms close the bay for weeks, people mend nets by the fire and tell long stories to children.
"""


@pytest.mark.parametrize("family", QUALITIES)
def test_clean_paragraphs_stay_and_five_copies_of_one_go(family: str) -> None:
    assert len(CHINESE) >= 280
    assert find_drop(TextParts(CHINESE), (family,)) is None
    assert find_drop(TextParts(ENGLISH), (family,)) is None
    mixed = CHINESE.replace("。", "，MindSpore 模型。", 3)
    assert find_drop(TextParts(mixed), (family,)) is None
    if family in ("gopher_repetition", "fineweb"):
        assert find_drop(TextParts("\n".join([CHINESE] * 5)), (family,)) is not None
        assert find_drop(TextParts("\n\n".join([ENGLISH] * 5)), (family,)) is not None


@pytest.mark.parametrize("lines", ["\n", "", "\n\n"])
def test_repetition_is_found_however_the_copies_are_joined(lines: str) -> None:
    assert find_drop(TextParts(lines.join([CHINESE] * 5)), ("gopher_repetition",)) is not None


@pytest.mark.parametrize(
    ("text", "family", "rule", "value", "threshold"),
    [
        ("three words only", "gopher_quality", "few_words", 3, 50),
        ("a b " * 60, "gopher_quality", "short_words", 1.0, 3),
        ("the of # " * 30, "gopher_quality", None, None, None),
        ("the and with have # ... " * 20, "gopher_quality", "hash_signs", None, 0.1),
        (
            "\n".join(f"- the item of number {i} and what is more" for i in range(20)),
            "gopher_quality",
            "bullet_lines",
            1.0,
            0.9,
        ),
        (
            "\n".join(f"the item of number {i} and some more words to it ..." for i in range(20)),
            "gopher_quality",
            "ellipsis_lines",
            1.0,
            0.3,
        ),
        ("春夏秋冬东西南北上下" * 8, "gopher_quality", "stop_words", 0, 2),
        (ENGLISH + " lorem ipsum.", "c4", "lorem_ipsum", 1, 0),
        (ENGLISH + " { }", "c4", "braces", 1, 0),
        ("No end here, just a long line of words", "c4", "few_sentences", 0, 5),
        ("One. Two. Three. Four.", "c4", "few_sentences", 4, 5),
        (
            "\n".join(f"line of words number {i} without a mark at its end" for i in range(20)),
            "fineweb",
            "terminal_lines",
            0.0,
            0.12,
        ),
        ("\n".join(f"{i}." for i in range(20)), "fineweb", "short_lines", 1.0, 0.67),
        (
            "\n".join(["The same long line that comes again and again."] * 9),
            "fineweb",
            "repeated_lines_characters",
            0.888889,
            0.1,
        ),
    ],
)
def test_a_broken_rule_is_named_with_value_and_threshold(text, family, rule, value, threshold) -> None:
    drop = find_drop(TextParts(text), (family,))

    if rule is None:
        assert drop is not None
        return
    assert drop is not None
    assert drop.rule == f"{family}_{rule}"
    assert drop.threshold == threshold
    if value is not None:
        assert drop.value == pytest.approx(value, abs=1e-6)


def test_sentences_end_at_chinese_marks() -> None:
    assert TextParts("你好。再见！真的？是……").num_sentences == 4
    assert TextParts("He said so. 3.14 is pi! Yes?").num_sentences == 3


def test_a_document_of_many_words_takes_linear_time() -> None:
    words = [f"w{random.Random(0).randrange(5000)}" for _ in range(10)]

    assert find_drop(TextParts(" ".join(words * 20_000)), ("gopher_repetition",)) is not None
