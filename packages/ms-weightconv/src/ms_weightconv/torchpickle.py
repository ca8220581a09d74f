"""A pickle machine that knows only what `torch.save` writes for tensors, and can call nothing.

Python's own unpickler reserves memory for memo numbers and recurses into what a file names; a state dict needs some
thirty opcodes. No global is ever imported: a name is looked up in a short list of tokens, and "calling" one of them
builds plain data. Lists, dicts and strings cannot grow beyond the file that holds them.
"""

import reprlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ms_weightconv.errors import SourceError

STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "Float8_e4m3fnStorage": "F8_E4M3", "Float8_e5m2Storage": "F8_E5M2",
    "UntypedStorage": "U8",
}  # fmt: skip
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_MARK = object()
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist, _SHORT.maxdict = 2, 4, 4, 2
_MAX_TOKEN = 1 << 20  # bytes of one text or number in the pickle; names of tensors are far shorter


@dataclass(frozen=True)
class Token:
    """A global that a file names: nothing but its name."""

    name: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its pickle describes it: nothing is checked against the file yet."""

    dtype: str
    """safetensors' name."""
    storage: str
    """Key of the storage, the last part of its file name."""
    num_elements: int
    """Elements that the storage is said to have, in its own dtype."""
    storage_dtype: str
    """Of the storage."""
    offset: int
    """In elements of `dtype`."""
    shape: tuple[int, ...]
    """Extents."""
    strides: tuple[int, ...]
    """In elements."""


class _State(dict[Any, Any]):
    """A dict that also takes the attributes of an OrderedDict, which are not needed."""


def _storage(values: Any) -> tuple[str, str, int]:
    if not isinstance(values, tuple) or len(values) not in (5, 6) or values[0] != "storage":
        raise SourceError(f"a persistent object {_show(values)} that is no storage")
    kind, key, count = values[1], values[2], values[4]
    name = kind.name.rpartition(".")[2] if isinstance(kind, Token) else ""
    if name not in STORAGES or not isinstance(key, str) or type(count) is not int or count < 0:
        raise SourceError(f"a storage of type {_show(kind)}, key {_show(key)}, {_show(count)} elements")
    return STORAGES[name], key, count


def _tensor(arguments: tuple[Any, ...], dtype: str | None) -> StoredTensor:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, tuple) or len(storage) != 3 or not isinstance(storage[2], int):
        raise SourceError(f"a tensor without a storage ({_show(storage)})")
    if not _is_sizes((offset,)) or not _is_sizes(shape) or not _is_sizes(strides) or len(shape) != len(strides):
        raise SourceError(f"a tensor of shape {_show(shape)}, strides {_show(strides)}, offset {_show(offset)}")
    if len(shape) > 32:
        raise SourceError(f"a tensor of {len(shape)} axes")
    return StoredTensor(dtype or storage[0], storage[1], storage[2], storage[0], offset, shape, strides)


def _show(value: Any) -> str:
    """A short text; a plain repr of a few bytes of pickle can be longer than memory."""
    return _SHORT.repr(value)[:100]


def _is_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _rebuild_tensor_v2(*arguments: Any) -> StoredTensor:
    if len(arguments) not in (6, 7):
        raise SourceError(f"_rebuild_tensor_v2 with {len(arguments)} arguments")
    return _tensor(arguments, None)


def _rebuild_tensor_v3(*arguments: Any) -> StoredTensor:
    dtype = arguments[6] if len(arguments) in (7, 8) else None
    name = dtype.name.removeprefix("torch.") if isinstance(dtype, Token) else ""
    if name not in DTYPES:
        raise SourceError(f"_rebuild_tensor_v3 with dtype {_show(dtype)}")
    return _tensor(arguments, DTYPES[name])


def _rebuild_parameter(*arguments: Any) -> StoredTensor:
    if len(arguments) not in (3, 4) or not isinstance(arguments[0], StoredTensor):
        raise SourceError("_rebuild_parameter of something that is no tensor")
    return arguments[0]


def _ordered_dict(*arguments: Any) -> _State:
    if arguments and arguments != ([],):
        raise SourceError("OrderedDict with a content given at its making")
    return _State()


def _size(*arguments: Any) -> tuple[int, ...]:
    if len(arguments) != 1 or not _is_sizes(arguments[0]):
        raise SourceError("torch.Size of something else than numbers")
    return tuple(arguments[0])


_CALLABLE: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch.Size": _size,
}
_NAMES = {
    *_CALLABLE,
    *(f"torch.{name}" for name in (*STORAGES, *DTYPES)),
    "torch.storage.UntypedStorage",
    "torch.storage.TypedStorage",
}


def load_tensors(text: bytes) -> Any:
    """Runs a pickle.

    Returns:
        Dicts, lists, tuples, texts, numbers and `StoredTensor`.

    Raises:
        SourceError: the pickle holds anything else, names a global that no tensor needs, or is cut short.
    """
    try:
        return _Machine(text).run()
    except (IndexError, struct.error, TypeError, KeyError, ValueError) as error:
        raise SourceError(f"not a pickle as torch writes it ({type(error).__name__}: {error!s:.100})") from error


class _Machine:
    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self._take(1)
            if code == b".":
                if len(self._stack) != 1:
                    raise SourceError(f"a pickle that ends with {len(self._stack)} values")
                return self._stack[0]
            step = _STEPS.get(code)
            if step is None:
                raise SourceError(f"pickle opcode {code!r} at byte {self._at - 1}, which no file of tensors has")
            step(self)

    def _take(self, count: int) -> bytes:
        part = self._text[self._at : self._at + count]
        if len(part) < count:
            raise SourceError("the pickle is cut short")
        self._at += count
        return part

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _push_number(self, form: str) -> None:
        self._stack.append(self._number(form))

    def _long(self) -> None:
        size = self._number("<B")
        if size > 8:
            raise SourceError(f"a whole number of {size} bytes")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _word(self, form: str) -> None:
        size = self._number(form)
        if size > _MAX_TOKEN:
            raise SourceError(f"a text of {size} bytes in the pickle")
        self._stack.append(self._take(size).decode("utf-8", "strict"))

    def _line(self) -> str:
        end = self._text.find(b"\n", self._at, self._at + 500)
        if end < 0:
            raise SourceError("the name of a global is cut short")
        line = self._text[self._at : end].decode("ascii", "strict")
        self._at = end + 1
        return line

    def _global(self) -> None:
        self._token(self._line(), self._line())

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise SourceError("a global whose name is no text")
        self._token(module, name)

    def _token(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise SourceError(
                f"the pickle names {full!r:.200}, which no file of tensors needs; it may run code: nothing was executed"
            )
        self._stack.append(Token(full))

    def _since_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                values = self._stack[at + 1 :]
                del self._stack[at:]
                return values
        raise SourceError("a pickle without the mark it refers to")

    def _tuple(self, count: int | None) -> None:
        values = self._since_mark() if count is None else [self._stack.pop() for _ in range(count)][::-1]
        if any(value is _MARK for value in values):
            raise SourceError("a tuple that reaches beyond its mark")
        self._stack.append(tuple(values))

    def _call(self) -> None:
        arguments, token = self._stack.pop(), self._stack.pop()
        if not isinstance(token, Token) or token.name not in _CALLABLE or not isinstance(arguments, tuple):
            raise SourceError(f"a call of {_show(token)}; nothing was executed")
        self._stack.append(_CALLABLE[token.name](*arguments))

    def _build(self) -> None:
        state = self._stack.pop()
        if not isinstance(self._stack[-1], _State) or not isinstance(state, dict):
            raise SourceError("a state set on something that has none; nothing was executed")

    def _set_items(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], dict) or len(values) % 2:
            raise SourceError("items set on something that is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int):
                raise SourceError(f"a key of type {type(key).__name__}")
            self._stack[-1][key] = value

    def _append(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise SourceError("values appended to something that is no list")
        self._stack[-1].extend(values)

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]


_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: m._number("<B"),
    b"\x95": lambda m: m._number("<Q"),
    b"(": lambda m: m._stack.append(_MARK),
    b"}": lambda m: m._stack.append({}),
    b"]": lambda m: m._stack.append([]),
    b")": lambda m: m._stack.append(()),
    b"N": lambda m: m._stack.append(None),
    b"\x88": lambda m: m._stack.append(True),
    b"\x89": lambda m: m._stack.append(False),
    b"K": lambda m: m._push_number("<B"),
    b"M": lambda m: m._push_number("<H"),
    b"J": lambda m: m._push_number("<i"),
    b"G": lambda m: m._push_number(">d"),
    b"\x8a": _Machine._long,
    b"\x8c": lambda m: m._word("<B"),
    b"X": lambda m: m._word("<I"),
    b"\x8d": lambda m: m._word("<Q"),
    b"c": _Machine._global,
    b"\x93": _Machine._stack_global,
    b"q": lambda m: m._put(m._number("<B")),
    b"r": lambda m: m._put(m._number("<I")),
    b"\x94": lambda m: m._put(len(m._memo)),
    b"h": lambda m: m._stack.append(m._memo[m._number("<B")]),
    b"j": lambda m: m._stack.append(m._memo[m._number("<I")]),
    b"t": lambda m: m._tuple(None),
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"Q": lambda m: m._stack.append(_storage(m._stack.pop())),
    b"R": _Machine._call,
    b"b": _Machine._build,
    b"s": lambda m: m._set_items([m._stack.pop(), m._stack.pop()][::-1]),
    b"u": lambda m: m._set_items(m._since_mark()),
    b"a": lambda m: m._append([m._stack.pop()]),
    b"e": lambda m: m._append(m._since_mark()),
}
