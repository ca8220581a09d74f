import shutil
import subprocess
import sys
from pathlib import Path

import ms_export
import pytest
from ms_export.errors import BundleError, PromptError
from ms_export.text import GrowingText


def _decode(ids):
    """Byte-level ids to text, as a byte-level tokenizer does."""
    return bytes(ids).decode("utf-8", errors="replace")


def _grow(text, stop=(), prompt=b"before "):
    growing = GrowingText(_decode, list(prompt), stop)
    pieces = []
    for byte in text.encode() if isinstance(text, str) else text:
        pieces.append(growing.add(byte))
        if growing.is_stopped:
            break
    return [*pieces, growing.finish()], growing


def test_text_comes_out_whole_and_never_with_half_a_character():
    text = "naïve 你好，世界 🙂 end"

    pieces, _ = _grow(text)

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_at_the_end_becomes_a_replacement_character():
    pieces, _ = _grow("ok你".encode()[:-1])

    assert "".join(pieces) == "ok\ufffd"


def test_a_stop_string_ends_the_text_and_no_part_of_it_is_shown():
    pieces, growing = _grow("one END two", stop=["END"])

    assert growing.is_stopped
    assert "".join(pieces) == "one "


def test_what_only_looks_like_the_begin_of_a_stop_string_is_shown_in_the_end():
    pieces, growing = _grow("the E, the EN", stop=["END"])

    assert not growing.is_stopped
    assert "".join(pieces) == "the E, the EN"


def test_the_first_of_several_stop_strings_counts():
    pieces, _ = _grow("a\n\nb###", stop=["###", "\n\n"])

    assert "".join(pieces) == "a"


def test_text_in_and_out_equals_ids_in_and_out(text_runtime):
    texts = ["w5 w3 w8", "w7"]

    answers = text_runtime.generate_text(texts, max_new_tokens=5, eos_token_ids=())

    generations = text_runtime.generate([[5, 3, 8], [7]], max_new_tokens=5, eos_token_ids=())
    expected = [" ".join(f"w{i}" for i in g.ids if i) for g in generations]
    assert [answer.strip() for answer in answers] == expected


def test_a_stop_string_ends_generation(text_runtime):
    whole = text_runtime.generate_text(["w7"], max_new_tokens=6, eos_token_ids=())[0].split()

    pieces = list(text_runtime.stream_text(["w7"], stop=[whole[3]], max_new_tokens=6, eos_token_ids=()))

    assert "".join(piece.text for piece in pieces).split() == whole[:3]
    assert pieces[-1].finish_reason == "stop"


def test_a_special_string_in_a_prompt_is_ordinary_text(text_runtime):
    ids = text_runtime.vocabulary.encode("w5 w0 w6")

    assert ids[0] == 5
    assert ids[-1] == 6
    assert text_runtime.vocabulary.decode([0, 5]) == "w5"


@pytest.mark.parametrize(
    ("prompts", "options", "named"),
    [
        ("w1", {}, "expected a list of texts"),
        ([5], {}, "prompt: expected text, found 5"),
        ([""], {}, "prompt 0: is empty"),
        (["\ud800"], {}, "not valid Unicode"),
        (["w1"], {"stop": [""]}, "stop: expected a list of strings"),
        (["w1"], {"stop": "w2"}, "stop: expected a list of strings"),
        ([" ".join(["w1"] * 13)], {}, "13 ids"),
    ],
)
def test_a_wrong_text_prompt_is_refused_by_name(text_runtime, prompts, options, named):
    with pytest.raises(PromptError, match=named):
        text_runtime.generate_text(prompts, **options)


def test_a_bundle_without_a_tokenizer_says_to_give_ids(runtime):
    assert not runtime.has_vocabulary
    with pytest.raises(PromptError, match="carries no tokenizer; give ids"):
        runtime.generate_text(["w1"])


def test_a_tokenizer_that_is_none_is_refused_by_name(text_bundle, tmp_path):
    folder = Path(shutil.copytree(text_bundle, tmp_path / "copy"))
    (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(BundleError, match=r"tokenizer\.json: not a tokenizer"):
        ms_export.Runtime(folder, verify=False).generate_text(["w1"])


def test_without_tokenizers_the_error_ends_with_the_line_that_installs_it(text_bundle):
    program = f"""
import sys
sys.modules["tokenizers"] = None
from ms_export import bundle, errors, text
from pathlib import Path
folder = Path({str(text_bundle)!r})
try:
    text.Vocabulary(folder, bundle.read(folder))
except errors.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip().endswith('pip install "ms-export[text]"')
