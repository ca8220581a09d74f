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
