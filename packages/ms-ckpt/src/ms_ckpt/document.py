"""Strict JSON: what comes back is exactly what went in, and anything doubtful is refused."""

import json
import math
from typing import Any

from ms_ckpt.errors import InvalidCheckpointError, ValuesError


def check_values(value: object, path: str = "values", inside: tuple[int, ...] = ()) -> None:
    """Raises ValuesError, naming the path, for anything that strict JSON would change or cannot hold."""
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise ValuesError(f"{path}: {value} cannot be stored; JSON has finite numbers only")
        return
    if id(value) in inside:
        raise ValuesError(f"{path}: refers to an object that contains it")
    inside = (*inside, id(value))
    if type(value) is list:
        for number, item in enumerate(value):
            check_values(item, f"{path}[{number}]", inside)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValuesError(f"{path}: key {key!r} is {type(key).__name__}; expected a string")
            check_values(item, f"{path}.{key}", inside)
    else:
        raise ValuesError(
            f"{path}: {type(value).__name__} would not come back as it is; "
            "expected dict, list, str, int, float, bool or None (arrays belong to the tensors)"
        )


def to_bytes(document: dict[str, Any]) -> bytes:
    """The document as UTF-8 JSON, floats by `repr`."""
    return (json.dumps(document, allow_nan=False, indent=1) + "\n").encode("ascii")


def from_bytes(data: bytes, name: str, *, format_name: str, other_format: str | None = None) -> dict[str, Any]:
    """The JSON object `data`; raises InvalidCheckpointError, naming the file `name`.

    Refused are another format (than the one or two given) or version, repeated keys, NaN and Infinity.
    """
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # covers UnicodeDecodeError and JSONDecodeError
        raise InvalidCheckpointError(f"{name}: not strict JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidCheckpointError(f"{name}: expected an object, found {type(document).__name__}")
    found = (document.get("format"), document.get("version"))
    known = [format_name] if other_format is None else [format_name, other_format]
    if found[0] not in known or found[1] != 1 or type(found[1]) is not int:
        raise InvalidCheckpointError(
            f"{name}: format {found[0]!r} version {found[1]!r}; this reader knows "
            f"{' and '.join(map(repr, known))} version 1"
        )
    return document


def check_keys(value: object, keys: set[str], name: str) -> dict[str, Any]:
    """The value as an object with exactly these keys; raises InvalidCheckpointError, naming `name`."""
    if not isinstance(value, dict):
        raise InvalidCheckpointError(f"{name}: expected an object, found {type(value).__name__}")
    if value.keys() != keys:
        raise InvalidCheckpointError(f"{name}: expected the keys {sorted(keys)}, found {sorted(value)}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"repeated key among {[key for key, _ in pairs]}")
    return result


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of strict JSON")
