"""The wire format of protocol buffers, as far as MindSpore's checkpoint and strategy files use it.

Read here without MindSpore, which takes seconds to import and holds a whole file in memory several times over.
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def fields(data: memoryview, where: slice | None = None) -> Iterator[tuple[int, int | slice]]:
    """Number and value of each field of the message in `data[where]` (all of it, if not given).

    A value is an unsigned integer, or where in `data` the bytes of a text, message or fixed-width number lie.

    Raises ValueError if the message ends inside a field, or is none.
    """
    place, end = (0, len(data)) if where is None else (where.start, where.stop)
    while place < end:
        key, place = read_varint(data, place, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"field number 0 at byte {place}")
        if kind == _VARINT:
            value, place = read_varint(data, place, end)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = read_varint(data, place, end)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {place}")
        if place + size > end:
            raise ValueError(f"byte {end} is the last, inside a field of {size} bytes at {place}")
        yield number, slice(place, place + size)
        place += size


def read_varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it; raises ValueError if it does not end before `end`."""
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if place + count >= end:
            raise ValueError(f"byte {end} is the last, inside a number")
        byte = data[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise ValueError(f"a number at byte {place} has no end")


def numbers(data: memoryview, value: int | slice) -> list[int]:
    """The signed 64-bit numbers of a repeated field's entry: one, or several packed together."""
    if isinstance(value, int):
        return [_signed(value)]
    found, place = [], value.start
    while place < value.stop:
        number, place = read_varint(data, place, value.stop)
        found.append(_signed(number))
    return found


def text(data: memoryview, value: int | slice) -> str:
    """A string field; raises ValueError (UnicodeDecodeError) if it is none."""
    return str(data[place(value)], "utf-8")


def place(value: int | slice) -> slice:
    """Where a field of bytes lies; raises ValueError if it is a number."""
    if isinstance(value, int):
        raise ValueError(f"expected bytes, found the number {value}")
    return value


def spell_varint(value: int) -> bytes:
    """A number >= 0 as it is written."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def spell_bytes(number: int, size: int) -> bytes:
    """What stands before a field of `size` bytes."""
    return spell_varint(number << 3 | _BYTES) + spell_varint(size)


def spell_number(number: int, value: int) -> bytes:
    """A field that holds a number >= 0."""
    return spell_varint(number << 3 | _VARINT) + spell_varint(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
