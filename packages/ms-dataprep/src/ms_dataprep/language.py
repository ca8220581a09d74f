"""Language identification: the likeliest of 97 languages, by a model that the extra `language` brings."""

from functools import cache
from typing import Any

from ms_dataprep.errors import DataprepError

_CHARACTERS_READ = 4000


@cache
def _load_identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise DataprepError('languages needs py3langid; pip install "ms-dataprep[language]"') from error
    return LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)


def identify_language(text: str) -> tuple[str, float]:
    """ISO 639-1 code and probability (0 to 1) of a text's language, judged by its first 4000 characters.

    Raises:
        DataprepError: the extra is not installed.
    """
    language, probability = _load_identifier().classify(text[:_CHARACTERS_READ])
    return str(language), float(probability)
