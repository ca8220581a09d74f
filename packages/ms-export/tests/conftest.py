"""The model of these tests is the README's example, so what users copy is what is tested."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The README's model as a module named readme_toy. MindSpore reads Cells' source, so it stands in a file."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("toy") / "readme_toy.py"
    path.write_text(re.search(r"^```python\n(.*?)^```", text, re.M | re.S)[1], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("readme_toy", path)
    module = sys.modules["readme_toy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def _graph_mode():
    """The source Cells compile once instead of running op by op: half the time. One test exports from PyNative."""
    import mindspore as ms

    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=mode)


@pytest.fixture(scope="session")
def small():
    """The fewest graphs: for tests that build and do not care which."""
    from ms_export import ExportConfig

    return ExportConfig(prefill_lengths=(12,), decode_batches=(1,), slots=4, max_length=16, max_new_tokens=6)


@pytest.fixture(scope="session")
def config():
    from ms_export import ExportConfig

    return ExportConfig(
        prefill_lengths=(4, 12), decode_batches=(1, 3), decode_windows=(8,), slots=4, max_length=16, max_new_tokens=6
    )


@pytest.fixture(scope="session")
def bundle(tmp_path_factory, toy, config):
    """A bundle that tests read and never change."""
    import ms_export

    return ms_export.build(tmp_path_factory.mktemp("bundle") / "toy", model=toy.cached_model(config), config=config)


@pytest.fixture(scope="session")
def runtime(bundle):
    import ms_export

    return ms_export.Runtime(bundle)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """Words w0 ... w63 with spaces between; w0 ends a text and is special."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(64)}, unk_token="w63"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("w0")])
    path = tmp_path_factory.mktemp("tokenizer") / "words.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def text_bundle(tmp_path_factory, toy, small, tokenizer_file):
    """A bundle with a tokenizer."""
    import ms_export

    output = tmp_path_factory.mktemp("text") / "toy-text"
    fingerprint = "sha256:" + "ab" * 32
    return ms_export.build(
        output,
        model=toy.cached_model(small),
        config=small,
        tokenizer=tokenizer_file,
        tokenizer_fingerprint=fingerprint,
    )


@pytest.fixture(scope="session")
def text_runtime(text_bundle):
    import ms_export

    return ms_export.Runtime(text_bundle)
