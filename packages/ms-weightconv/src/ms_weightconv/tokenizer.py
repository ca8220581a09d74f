"""Tokenizer files: carried over from the source or taken from elsewhere, with the little that transformers asks for."""

import os
import shutil
from pathlib import Path
from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.errors import SourceError
from ms_weightconv.shards import check_inside, read_json
from ms_weightconv.target import write_document

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


def carry_tokenizer(
    source: Path, given: Path | None, target: Path, config: Config, *, is_huggingface: bool
) -> list[str]:
    """Copies tokenizer files into the target.

    Args:
        source: the model's folder.
        given: a tokenizer.json, or a folder with tokenizer files, that is used instead of those of the source.
        target: where to.
        config: the model's config.
        is_huggingface: whether to add a tokenizer_config.json where there is none.

    Returns:
        Notes for the report.

    Raises:
        SourceError: the given tokenizer is missing, or has ids that the model has no embedding for.
    """
    if given is not None and given.is_file():
        if given.suffix != ".json":
            raise SourceError(f"{given}: expected a tokenizer.json, or a folder with tokenizer files")
        _copy(given, target / "tokenizer.json")
    else:
        folder = source if given is None else given
        found = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
        if given is not None and not found:
            raise SourceError(f"{given}: holds no tokenizer files ({', '.join(TOKENIZER_FILES[:2])} ...)")
        for path in found:
            check_inside(path)
            _copy(path, target / path.name)
    file = target / "tokenizer.json"
    if not file.exists():
        return [] if any((target / name).exists() for name in TOKENIZER_FILES) else ["no tokenizer files in the source"]
    tokens = _tokens(read_json(file), given or source)
    if is_huggingface and not (target / "tokenizer_config.json").exists():
        write_document(target / "tokenizer_config.json", _minimal_config(tokens, config))
    highest = max(tokens, default=-1)
    if highest < config["vocab_size"]:
        return []
    fault = f"the tokenizer has ids up to {highest}, the model's vocab_size is {config['vocab_size']}"
    if given is not None:
        raise SourceError(f"{given}: {fault}; it belongs to another model")
    return [fault]


def _tokens(tokenizer: dict[str, Any], what: Path) -> dict[int, str]:
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocab, dict):
            tokens = {int(number): str(token) for token, number in vocab.items()}
        else:
            tokens = {number: str(entry[0]) for number, entry in enumerate(vocab or ())}  # Unigram: [token, score]
        return tokens | {int(entry["id"]): str(entry["content"]) for entry in tokenizer.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(
            f"{what}: tokenizer.json is not as the tokenizers library writes it ({error!r:.100})"
        ) from error


def _minimal_config(tokens: dict[int, str], config: Config) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "pad"):
        ids = config[f"{role}_token_id"]
        first = ids[0] if isinstance(ids, list) else ids
        if first in tokens:
            values[f"{role}_token"] = tokens[first]
    return values


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
