"""Trains a tokenizer on the same cleaned text that a dataset will hold."""

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ms_dataprep.cleaning import Cleaner
from ms_dataprep.config import TokenizerConfig
from ms_dataprep.errors import SourceError, TokenizerError
from ms_dataprep.manifest import write_file
from ms_dataprep.progress import Progress
from ms_dataprep.readers import Document, read_documents
from ms_dataprep.sources import Source, find_sources, open_stream
from ms_dataprep.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_PART_CHARACTERS = 1 << 16
_SENTENCE_BYTES = 1 << 14


def train_tokenizer(
    inputs: Sequence[str | Path], output: str | Path, config: TokenizerConfig, *, progress: bool = True
) -> Tokenizer:
    """Trains a tokenizer and publishes it.

    `byte_bpe`: byte-level BPE as a tokenizer.json, with a tokenizer_config.json beside it; every byte is in the
    vocabulary, so any text can be written, and the only special token ends documents (id 0). `bpe` and `unigram`:
    SentencePiece with byte fallback as a .model; ids 0, 1, 2 are `<unk>`, `<s>` and `</s>`, which ends documents. The
    same text and options give the same file.

    Args:
        inputs: files, folders and globs, as for `build`.
        output: the file to write; an existing one is replaced.
        config: kind and sizes.
        progress: whether to show how far the text was read.

    Raises:
        SourceError: no input, or no document with text in it.
        TokenizerError: the output's ending does not fit the kind, the extra of SentencePiece is missing, or the text is
            too little for the vocabulary.
    """
    output = Path(output)
    wanted = ".json" if config.kind == "byte_bpe" else ".model"
    if output.suffix != wanted:
        raise TokenizerError(f"{output}: a tokenizer of kind {config.kind} is written as *{wanted}")
    texts = _Texts(find_sources(inputs), config, is_shown=progress)
    data = _train_byte_bpe(texts, config) if config.kind == "byte_bpe" else _train_sentencepiece(texts, config)
    output.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, str):
        settings = {"eos_token": config.eod_token, "tokenizer_class": "PreTrainedTokenizerFast"}
        write_file(output.with_name("tokenizer_config.json"), json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
    write_file(output, data)
    tokenizer = load_tokenizer(output, eod_token=config.eod_token if config.kind == "byte_bpe" else None)
    if (found := tokenizer.vocab_size) < config.vocab_size:
        logger.warning("%s: %d ids, %d were asked for: the text has no more pairs", output, found, config.vocab_size)
    logger.info("%s: %d ids from %d documents", output, tokenizer.vocab_size, texts.num_documents)
    return tokenizer


class _Texts:
    """Cleaned documents of sources, counted as they pass."""

    def __init__(self, sources: Sequence[Source], config: TokenizerConfig, *, is_shown: bool) -> None:
        self.num_documents = 0
        self._sources = sources
        self._config = config
        self._is_shown = is_shown

    def __iter__(self) -> Iterator[str]:
        cleaner, keys = Cleaner(), (self._config.text_key,)
        with Progress("train-tokenizer", sum(source.bytes for source in self._sources), shown=self._is_shown) as bar:
            for source in self._sources:
                told = 0
                with open_stream(source) as (stream, raw):
                    for item in read_documents(source, stream, keys):
                        if isinstance(item, Document) and (text := cleaner.clean(item.text)).strip():
                            self.num_documents += 1
                            yield text
                            bar.advance(raw.bytes_read - told, 1)
                            told = raw.bytes_read
                bar.advance(source.bytes - told, 0)

    def refuse_none(self) -> None:
        """Raises SourceError if no document passed."""
        if not self.num_documents:
            key = self._config.text_key
            raise SourceError(f"no readable document in {len(self._sources)} files; is the text under {key!r}?")


def _train_byte_bpe(texts: _Texts, config: TokenizerConfig) -> str:
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[config.eod_token],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def parts() -> Iterator[str]:
        for text in texts:
            for start in range(0, len(text), _PART_CHARACTERS):
                yield text[start : start + _PART_CHARACTERS]

    inner.train_from_iterator(parts(), trainer)
    texts.refuse_none()
    trained: str = inner.to_str(pretty=True)
    return trained


def _train_sentencepiece(texts: _Texts, config: TokenizerConfig) -> bytes:
    try:
        import sentencepiece
    except ImportError as error:
        raise TokenizerError(
            f'kind {config.kind} needs sentencepiece; pip install "ms-dataprep[sentencepiece]"'
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.txt"  # a file, because the library's errors inside an iterator end the process
        with lines.open("w", encoding="utf-8") as file:
            for text in texts:
                file.writelines(line + "\n" for line in text.split("\n") if line)
        texts.refuse_none()
        prefix = Path(folder) / "trained"
        try:
            sentencepiece.SentencePieceTrainer.train(
                input=str(lines), model_prefix=str(prefix), model_type=config.kind, vocab_size=config.vocab_size,
                byte_fallback=True, character_coverage=0.9995, normalization_rule_name="identity",
                remove_extra_whitespaces=False, split_digits=True, max_sentence_length=_SENTENCE_BYTES,
                num_threads=os.cpu_count() or 1, hard_vocab_limit=config.kind == "bpe", minloglevel=2,
                allow_whitespace_only_pieces=True, input_sentence_size=5_000_000, shuffle_input_sentence=True,
            )  # fmt: skip
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise TokenizerError(
                f"SentencePiece cannot train {config.vocab_size} ids on this text: {reason}"
            ) from error
        return prefix.with_suffix(".model").read_bytes()
