"""Trains a byte-level BPE tokenizer on the same cleaned text that a dataset will hold."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ms_dataprep.cleaning import Cleaner
from ms_dataprep.config import TokenizerConfig
from ms_dataprep.errors import SourceError
from ms_dataprep.manifest import write_file
from ms_dataprep.progress import Progress
from ms_dataprep.readers import Document, read_documents
from ms_dataprep.sources import SourceFile, find_sources
from ms_dataprep.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_PART_CHARACTERS = 1 << 16


def train_tokenizer(
    inputs: Sequence[str | Path], output: str | Path, config: TokenizerConfig, *, progress: bool = True
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer and publishes it as a tokenizer.json, with a tokenizer_config.json beside it.

    Every byte is in the vocabulary, so any text can be written; the only special token ends documents (id 0). The
    same text and options give the same file.

    Args:
        inputs: files, folders and globs, as for `build`.
        output: the file to write; an existing one is replaced.
        config: sizes and the document-end token.
        progress: whether to show how far the text was read.

    Raises:
        SourceError: no input, or no readable document in it.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    output = Path(output)
    sources = find_sources(inputs)
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
    documents = 0

    def texts() -> Iterator[str]:
        nonlocal documents
        cleaner = Cleaner()
        with Progress("train-tokenizer", sum(source.bytes for source in sources), shown=progress) as bar:
            for source in sources:
                with SourceFile(source) as file:
                    for item in read_documents(source, file, config.text_key):
                        if isinstance(item, Document):
                            text = cleaner.clean(item.text)
                            documents += bool(text.strip())
                            for start in range(0, len(text), _PART_CHARACTERS):
                                yield text[start : start + _PART_CHARACTERS]
                        bar.advance_to(source.path, file.bytes_read, documents)

    inner.train_from_iterator(texts(), trainer)
    if documents == 0:
        raise SourceError(f"no readable document in {len(sources)} files; is the text under {config.text_key!r}?")
    output.parent.mkdir(parents=True, exist_ok=True)
    settings = {"eos_token": config.eod_token, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_file(output.with_name("tokenizer_config.json"), json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
    write_file(output, inner.to_str(pretty=True))
    found = inner.get_vocab_size()
    if found < config.vocab_size:
        logger.warning("%s: %d ids, %d were asked for: the text has no more pairs", output, found, config.vocab_size)
    logger.info("%s: %d ids from %d documents", output, found, documents)
    return load_tokenizer(output, eod_token=config.eod_token)
