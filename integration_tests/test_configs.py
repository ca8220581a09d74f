"""Every shipped config is understood by every package's own reader, and by the tools'."""

from pathlib import Path

import pytest
from run_config import SECTIONS, load_run_config

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


def _read_all(name: str, changes: tuple[str, ...] = ()) -> dict:
    config = load_run_config(ROOT / "configs" / name, changes)
    return {section: config.read(section) for section in SECTIONS}


def test_the_four_configs_are_shipped():
    assert CONFIGS == ["gpt2_124m.yaml", "gpt_7b.yaml", "llama_7b.yaml", "tiny.yaml"]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_package_reads_every_config(name):
    sections = _read_all(name)

    assert sections["data"].seq_length <= sections["model"].max_position_embeddings
    assert isinstance(sections["train"].learning_rate, float)
    assert sections["export"].max_length <= sections["model"].max_position_embeddings


@pytest.mark.parametrize("section", ["run", "data", "model", "parallel", "train", "checkpoint", "export", "convert"])
def test_an_unknown_key_is_refused_by_its_section_with_its_full_path(section):
    with pytest.raises(Exception, match=rf"{section}\.no_such_key.*unknown key"):
        _read_all("tiny.yaml", (f"{section}.no_such_key=1",))


@pytest.mark.parametrize(
    "change",
    ["data.seq_length=long", "model.hidden_size=[1]", "parallel.tensor=two", "train.steps=many",
     "checkpoint.keep_last=yes", "export.max_length=3.5", "convert.dtype=3", "run.folder=3"],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_with_its_full_path(change):
    place = change.split("=")[0].replace(".", r"\.")

    with pytest.raises(Exception, match=rf"{place}: expected"):
        _read_all("tiny.yaml", (change,))


def test_a_learning_rate_written_3e_4_is_a_number():
    assert _read_all("tiny.yaml", ("train.learning_rate=3e-4",))["train"].learning_rate == 3e-4
