"""What is decided by a hash of a document's cleaned text: whether it was seen before, and to which part it belongs."""

import hashlib

_SPLIT_BYTES = 8


class Selection:
    """Tells a document's fate by its text alone: repeated, of the other part, or kept.

    Memory: 16 bytes of hash a kept document (about 100 bytes in Python's set); a collision is expected after 2^64.
    """

    def __init__(self, *, dedup: str, part: str, validation_share: float) -> None:
        self._seen: set[bytes] | None = set() if dedup == "exact" else None
        self._part = part
        self._threshold = round(validation_share * 2 ** (8 * _SPLIT_BYTES))

    def drop_reason(self, text: str) -> str | None:
        """`other_part`, `duplicate`, or None for a document to keep."""
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16 + _SPLIT_BYTES).digest()
        if self._part != "all":
            is_validation = int.from_bytes(digest[16:], "little") < self._threshold
            if is_validation != (self._part == "validation"):
                return "other_part"
        if self._seen is not None:
            if digest[:16] in self._seen:
                return "duplicate"
            self._seen.add(digest[:16])
        return None
