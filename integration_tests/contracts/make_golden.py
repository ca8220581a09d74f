"""Writes the golden files of the seven contracts, or compares them with what it would write (`--check`).

It works from the documents alone, with numpy, tokenizers and MindSpore's FileWriter, and imports none of the ms_*
packages. The graph files of a bundle are the one thing it cannot make that way: they are tested live by ms-export.
MindRecord's bytes depend on the MindSpore version: on another one than the golden files were written with, `--check`
compares the rows of the shards and the manifest without hashes and sizes, and says so.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from golden_writers import batch, bundle, checkpoint, dataset, metrics, model, plan

_HERE = Path(__file__).parent
_WRITERS = {
    "batch": batch, "bundle": bundle, "checkpoint": checkpoint, "dataset": dataset, "metrics": metrics, "model": model,
    "plan": plan,
}  # fmt: skip


def main() -> None:
    """Reads the command line; exits with 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contracts", nargs="*", metavar="CONTRACT", help=f"of {', '.join(_WRITERS)}; default: all")
    parser.add_argument("--check", action="store_true", help="compare with the golden files and write nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.contracts) - set(_WRITERS):
        parser.error(f"unknown contract {', '.join(sorted(unknown))}; known: {', '.join(_WRITERS)}")
    names = arguments.contracts or list(_WRITERS)
    if not arguments.check:
        for name in names:
            _WRITERS[name].write(_HERE / name / "golden")
        return
    differences = []
    with TemporaryDirectory() as folder:
        for name in names:
            _WRITERS[name].write(Path(folder) / name)
            differences += [
                f"{name}/golden/{line}" for line in _differences(Path(folder) / name, _HERE / name / "golden")
            ]
    print("\n".join(differences) or f"golden files of {', '.join(names)}: as make_golden.py writes them")
    sys.exit(bool(differences))


def _differences(made: Path, golden: Path) -> list[str]:
    """One line for each file that is missing, unexpected or different."""
    paths = {path.relative_to(root) for root in (made, golden) for path in root.rglob("*") if path.is_file()}
    found = []
    for path in sorted(paths):
        ours, theirs = made / path, golden / path
        if not theirs.exists():
            found.append(f"{path}: missing")
        elif not ours.exists():
            found.append(f"{path}: unexpected file")
        elif ours.read_bytes() != theirs.read_bytes() and not _same_but_for_mindspore(ours, theirs):
            found.append(f"{path}: differs")
    return found


def _same_but_for_mindspore(ours: Path, theirs: Path) -> bool:
    """True where two files differ only by the MindSpore version that wrote them."""
    versions = [json.loads((p.parent / "dataset.json").read_text("utf-8"))["mindspore_version"]
                if (p.parent / "dataset.json").exists() else None for p in (ours, theirs)]  # fmt: skip
    if ours.name.endswith(".mindrecord.db"):  # an index: the rows read below prove it
        return True
    if versions[0] == versions[1]:
        return False
    print(f"{theirs.name}: written by MindSpore {versions[1]}, checked with {versions[0]}: only content is compared")
    if ours.suffix == ".mindrecord":
        return _rows(ours) == _rows(theirs)
    return ours.name == "dataset.json" and _without_hashes(ours) == _without_hashes(theirs)


def _rows(path: Path) -> list[bytes]:
    from mindspore.mindrecord import FileReader

    reader = FileReader(str(path))
    rows = [bytes(row["input_ids"]) for row in reader.get_next()]
    reader.close()
    return rows


def _without_hashes(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text("utf-8"))
    del value["mindspore_version"]
    for shard in value["shards"]:
        del shard["bytes"], shard["sha256"]
    return value


if __name__ == "__main__":
    main()
