import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ms_dataprep.cli import main


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_help_and_import_load_nothing_heavy() -> None:
    heavy = ("mindspore", "tokenizers", "numpy")
    code = f"import sys, ms_dataprep, ms_dataprep.cli; print([name for name in {heavy} if name in sys.modules])"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_loader_loads_no_tokenizer_library(golden: Path) -> None:
    code = (
        f"import sys, ms_dataprep; next(iter(ms_dataprep.load({str(golden / 'int32')!r}, batch_size=1)));"
        "print([name for name in ('mindspore', 'tokenizers') if name in sys.modules])"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_build_needs_no_mindspore(golden: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['mindspore'] = None; import ms_dataprep; ms_dataprep.build("
        f"[{str(golden / 'documents.jsonl')!r}], {str(tmp_path / 'out')!r}, "
        f"tokenizer={str(golden / 'int32' / 'tokenizer.json')!r}, config=ms_dataprep.DataConfig(seq_length=8));"
        f"loader = ms_dataprep.load({str(tmp_path / 'out')!r}, batch_size=1);"
        "print(next(iter(loader))['labels'].shape); loader.to_dataset()"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "(1, 8)\n"
    assert 'to_dataset needs MindSpore; pip install "ms-dataprep[mindspore]"' in done.stderr


def test_the_commands_work_one_after_the_other(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"the cat {number} sat"}) + "\n" for number in range(50)))
    tokenizer, dataset = tmp_path / "tok" / "tokenizer.json", tmp_path / "data"

    for arguments, expected in (
        (("train-tokenizer", text, "-o", tokenizer, "--vocab-size", 260), "260 ids, sha256:"),
        (("check-tokenizer", tokenizer, tokenizer, "--sample", text), "both tokenize alike"),
        (("build", text, "-o", dataset, "-t", tokenizer, "--seq-length", 16), "50 documents"),
        (("verify", dataset), "right; "),
        (("inspect", dataset, "--count", 2), "the cat 0 sat"),
    ):
        code, output = run(*arguments)
        assert code == 0, output
        assert expected in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build", "none.txt", "-o", "out", "-t", "{tokenizer}", "--seq-length", 8), "none.txt: no such file"),
        (("build", "{text}", "-o", "out", "-t", "none.json", "--seq-length", 8), "none.json: no such tokenizer file"),
        (("build", "{text}", "-o", "out", "-t", "{tokenizer}", "--seq-length", 0), "seq_length: expected 1 or more"),
        (("build", "{text}", "-o", "full", "-t", "{tokenizer}", "--seq-length", 8), "is not empty"),
        (("verify", "none"), "none: no such dataset folder"),
        (("inspect", "full"), "no dataset.json"),
        (("check-tokenizer", "{tokenizer}", "{text}"), "expected a tokenizer.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(tmp_path, monkeypatch, tokenizer_path, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    names = {"tokenizer": str(tokenizer_path), "text": "text.jsonl"}

    code, output = run(*(str(argument).format(**names) for argument in arguments))

    assert code == 1
    assert message in output
    assert output.count("\n") == 1


def test_a_row_beyond_the_last_is_refused(golden: Path) -> None:
    code, output = run("inspect", golden / "int32", "--row", 5)

    assert code != 0
    assert "rows 0 to 4" in output
