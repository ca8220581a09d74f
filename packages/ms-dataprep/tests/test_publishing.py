import fcntl
import os
from pathlib import Path

import pytest
from ms_dataprep.errors import DatasetError
from ms_dataprep.publishing import publish_folder


def finish(folder: Path, content: str) -> None:
    (folder / "dataset.json").write_text(content)


def fail_after_writing(folder: Path) -> None:
    finish(folder, "new")
    raise RuntimeError


def test_the_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with publish_folder(tmp_path / "new" / "out", overwrite=False) as building:
        finish(building, "1")
        assert not (tmp_path / "new" / "out").exists()

    assert (tmp_path / "new" / "out" / "dataset.json").read_text() == "1"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_a_failed_replacement_leaves_the_old_one_alone(tmp_path: Path) -> None:
    with publish_folder(tmp_path / "out", overwrite=False) as building:
        finish(building, "old")

    with pytest.raises(RuntimeError), publish_folder(tmp_path / "out", overwrite=True) as building:
        fail_after_writing(building)

    assert (tmp_path / "out" / "dataset.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with publish_folder(tmp_path / "out", overwrite=True) as building:
        finish(building, "new")
    assert (tmp_path / "out" / "dataset.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_build_killed_between_the_renames_loses_no_dataset(tmp_path: Path) -> None:
    (tmp_path / ".out.replaced").mkdir()
    finish(tmp_path / ".out.replaced", "old")

    with pytest.raises(RuntimeError), publish_folder(tmp_path / "out", overwrite=True) as building:
        fail_after_writing(building)

    assert (tmp_path / "out" / "dataset.json").read_text() == "old"


def test_used_folders_are_refused_and_foreign_files_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")

    for name, overwrite, message in (
        ("out", False, "is not empty"),
        ("out", True, "so it is not overwritten"),
        ("file", True, "is a file"),
    ):
        with pytest.raises(DatasetError, match=message), publish_folder(tmp_path / name, overwrite=overwrite):
            pass

    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_what_a_killed_build_left_is_cleared_and_a_running_one_is_respected(tmp_path: Path) -> None:
    left = tmp_path / ".out.building"
    left.mkdir()
    (left / "shard-00000.mindrecord").write_text("torn")
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with (
        pytest.raises(DatasetError, match="another build is writing it"),
        publish_folder(tmp_path / "out", overwrite=False),
    ):
        pass
    os.close(lock)
    with publish_folder(tmp_path / "out", overwrite=False) as building:
        finish(building, "1")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dataset.json"]
