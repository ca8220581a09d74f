"""Running checksums inside a chunk, so that a part of it can be verified without reading the rest.

They lie in the file's own header, as `__metadata__` (covered by the header's checksum): for the key `K` of a chunk of
at least 128 KiB, `ms-ckpt.pieces/K` is `<bytes of a piece>:<8 hex digits after each piece>`. The digits: the CRC-32 of
the chunk from its first byte to that piece's end: the last equals the chunk's checksum, and piece n is verified by
continuing from the digits of piece n-1.
"""

from dataclasses import dataclass

_PREFIX = "ms-ckpt.pieces/"
_SMALLEST = 64 << 10
_MOST = 256  # pieces a chunk: 2 KB of header, and a row split over 8 ranks reads at most 1/32 too much


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The running checksums of one chunk: after every `size` bytes, and after the last."""

    size: int
    digits: str

    def at(self, place: int) -> int | None:
        """The running checksum at a byte of the chunk; None if no piece ends there."""
        if place == 0:
            return 0
        number, rest = divmod(place, self.size)
        found = self.digits[8 * (number - (rest == 0)) :][:8]
        return int(found, 16) if found and (rest == 0 or 8 * (number + 1) == len(self.digits)) else None

    def cover(self, start: int, stop: int, size: int) -> tuple[int, int]:
        """The smallest range of whole pieces that covers bytes start to stop of a chunk of `size` bytes."""
        return start // self.size * self.size, min(-(-stop // self.size) * self.size, size)


def piece_size(size: int) -> int | None:
    """Bytes of a piece for a chunk of `size` bytes: a power of two; None for a chunk too small to be cut."""
    if size < 2 * _SMALLEST:
        return None
    piece = _SMALLEST
    while piece * _MOST < size:
        piece *= 2
    return piece


def spell_pieces(piece: int, running: list[int]) -> str:
    """The running checksums as they stand in a header; all texts for one chunk have one length."""
    return f"{piece}:" + "".join(f"{value:08x}" for value in running)


def metadata_key(key: str) -> str:
    """Under which name a chunk's running checksums stand in the header."""
    return _PREFIX + key


def parse_pieces(text: object, size: int, checksum: str) -> Pieces | None:
    """The running checksums of a chunk of `size` bytes; None unless they are exactly as this module writes them."""
    if not isinstance(text, str):
        return None
    head, _, digits = text.partition(":")
    if not head.isdecimal() or int(head) < 1 or len(digits) != 8 * -(-size // int(head)) or not digits:
        return None
    return Pieces(size=int(head), digits=digits) if f"crc32:{digits[-8:]}" == checksum else None
