"""The three documents of a checkpoint folder: `COMMIT` vouches for `index.json` and `state.json`."""

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_ckpt.document import check_keys, check_values, from_bytes, to_bytes
from ms_ckpt.durable import sync_folder, write_file
from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.index import Index

STATE_FORMAT = "ms-ckpt.state"
DOCUMENTS = ("COMMIT", "index.json", "state.json")


def state_bytes(step: int, values: Mapping[str, Any]) -> bytes:
    """The bytes of `state.json`; raises ValuesError, naming the path to a value that JSON would change."""
    values = dict(values)
    check_values(values)
    return to_bytes({"format": STATE_FORMAT, "version": 1, "step": step, "values": values})


def write_documents(folder: Path, index: Index, state: bytes) -> None:
    """Writes the three documents beside the finished tensor files, `COMMIT` last, everything durable."""
    data = index.to_bytes()
    write_file(folder / "index.json", data)
    write_file(folder / "state.json", state)
    sync_folder(folder)  # the names of all files are durable before COMMIT vouches for them
    write_file(folder / "COMMIT", _commit_bytes(data, state))
    sync_folder(folder)


def read_documents(folder: Path) -> tuple[Index, int, dict[str, Any]]:
    """The index, the state's step and its values; raises InvalidCheckpointError, naming the file and what is wrong."""
    commit = _read_file(folder / "COMMIT", limit=1 << 12)
    index_data, state_data = _read_file(folder / "index.json"), _read_file(folder / "state.json")
    if commit != _commit_bytes(index_data, state_data):
        raise InvalidCheckpointError(_explain(commit, index_data, state_data))
    index = Index.from_bytes(index_data)
    state = from_bytes(state_data, "state.json", format_name=STATE_FORMAT)
    check_keys(state, {"format", "version", "step", "values"}, "state.json")
    values = state["values"]
    if not isinstance(values, dict):
        raise InvalidCheckpointError(f"state.json: values: expected an object, found {type(values).__name__}")
    return index, state["step"], values


def _read_file(path: Path, limit: int = 1 << 30) -> bytes:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidCheckpointError(f"{path.name}: not a regular file")
        if status.st_size > limit:
            raise InvalidCheckpointError(f"{path.name}: {status.st_size} bytes, expected at most {limit}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidCheckpointError(f"{path.name}: missing") from error
    except OSError as error:
        raise InvalidCheckpointError(f"{path.name}: cannot be read: {error.strerror}") from error


def _commit_bytes(index: bytes, state: bytes) -> bytes:
    lines = ["ms-ckpt.commit 1", f"sha256:{_sha256(index)} index.json", f"sha256:{_sha256(state)} state.json", ""]
    return "\n".join(lines).encode("ascii")


def _explain(commit: bytes, index: bytes, state: bytes) -> str:
    """Which file it is that COMMIT does not vouch for."""
    if not commit.startswith(b"ms-ckpt.commit 1\n"):
        return f"COMMIT: begins with {commit[:20]!r}; this reader knows b'ms-ckpt.commit 1'"
    changed = [
        name for name, data in (("index.json", index), ("state.json", state)) if _sha256(data).encode() not in commit
    ]
    return f"{' and '.join(changed)}: hash differs from COMMIT's" if changed else "COMMIT: malformed"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
