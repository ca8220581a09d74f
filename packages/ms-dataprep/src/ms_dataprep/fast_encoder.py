"""The fast backend: the package gigatoken, believed only after it gave the reference's ids for test strings."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import TokenizerError
from ms_dataprep.fingerprint import probe_strings

logger = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], list[NDArray[np.int32]]]


class FastEncoder:
    """Encodes batches of texts; special strings in them are ordinary text."""

    def __init__(self, content: dict[str, Any], structural_ids: set[int]) -> None:
        """Of a parsed tokenizer.json. Special tokens are left out: the package would find them in text."""
        import gigatoken

        plain = [
            entry
            for entry in content.get("added_tokens") or []
            if not entry["special"] and entry["id"] not in structural_ids
        ]
        self._inner: Any = gigatoken.Tokenizer.from_json(json.dumps({**content, "added_tokens": plain}))

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text, int32."""
        if not texts:
            return []
        layout = self._inner.encode_batch(list(texts)).layout
        if hasattr(layout, "offsets"):
            offsets = np.asarray(layout.offsets.data)
            starts, stops = offsets[:-1], offsets[1:]
        else:
            starts, stops = np.asarray(layout.starts.data), np.asarray(layout.stops.data)
        ids = np.asarray(layout.content.data).astype(np.int32)
        return [ids[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def find_fast_encoder(
    content: dict[str, Any], structural_ids: set[int], reference: Encode, *, is_required: bool
) -> FastEncoder | None:
    """The fast encoder of a tokenizer.json, or None, with one log line that says why.

    Args:
        content: the parsed file.
        structural_ids: ids that end, pad and begin documents.
        reference: gives the ids that must come out.
        is_required: raise instead of giving None.

    Raises:
        TokenizerError: it is required and not installed, refuses the file, or gives other ids.
    """
    try:
        encoder = FastEncoder(content, structural_ids)
        texts = _test_strings(content)
        wrong = [
            text
            for text, mine, theirs in zip(texts, encoder(texts), reference(texts), strict=True)
            if not np.array_equal(mine, theirs)
        ]
        problem = f"it gives other ids for {wrong[0][:60]!r}" if wrong else ""
    except ImportError:
        if not is_required:
            logger.info('the reference tokenizer is used; pip install "ms-dataprep[fast]" for the fast one')
            return None
        problem = 'it is not installed; pip install "ms-dataprep[fast]"'
    except Exception as error:  # noqa: BLE001 - whatever it cannot do, the reference can
        problem = f"it cannot read this tokenizer: {' '.join(str(error).split())[:200]}"
    if problem and is_required:
        raise TokenizerError(f"tokenizer_backend: fast cannot be used: {problem}")
    if problem:
        logger.info("the reference tokenizer is used, not the fast one: %s", problem)
        return None
    logger.info("the fast tokenizer is used; it gave the reference's ids for %d test strings", len(texts))
    return encoder


def _test_strings(content: dict[str, Any]) -> list[str]:
    """Probes, every special string inside text, and runs of what pre-tokenizers treat apart, alone and joined."""
    probes = probe_strings()
    specials = [f"a {entry['content']} b{entry['content']}c" for entry in content.get("added_tokens") or []]
    runs = [
        "", " ", "\n", "a", "  a   b    c", "a\n\n\n b\t\tc \n", "\r\n x\r\ry", "It's we'll I'M they'RE 'tis",
        "1 12 123 1234 12345678901234567890", "3.14159e-10 0x1F 1,000,000", "!!! ??? ... --- ___ ***",
        "a_b-c.d/e\\f@g:h CamelCase snake_case UPPERCASE mixedCase99", "naïve café Straße",
        "Ελληνικά русский עברית العربية",
        "中文没有空格，标点。也有！", "混合English和中文123数字", "ひらがなカタカナ漢字",
        "한국어 텍스트", "ไทย हिन्दी தமிழ்",
        "👩‍👩‍👧‍👦 🇨🇳 👍🏽 e\u0301 \u200d\ufeff", "\u00a0\u2003\u3000x\u00a0", "x" * 300, "ab " * 200,
        "\t" * 50 + " " * 50,
        "def f(x):\n    return x ** 2  # comment\n", '{"key": [1, 2.5, null, true]}', "<p>html &amp; tags</p>",
    ]  # fmt: skip
    return [*probes, *specials, *runs, "\n".join([*probes, *runs]) * 3]
