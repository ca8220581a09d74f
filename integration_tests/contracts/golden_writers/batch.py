"""Golden values of contract `batch`: the order of rows, and what a row looks like to a training step."""

from pathlib import Path

from golden_writers.document import write_json

_WORD = 2**64 - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15

_PERMUTATIONS = [
    (seed, epoch, n)
    for n in (1, 2, 3, 7, 64, 1000)
    for seed, epoch in ((0, 0), (0, 1), (1234, 0), (1234, 7), (2**63 + 5, 3), (_WORD, 0))
]


def order(seed: int, epoch: int, index: int, rows: int) -> int:
    """The row that the contract's Feistel network puts at `index` of `epoch`."""
    keys = [_mix(_mix(_mix(seed + _GOLDEN_RATIO) + epoch + _GOLDEN_RATIO) + k + _GOLDEN_RATIO) for k in range(8)]
    half = max(1, -(-(rows - 1).bit_length() // 2))
    mask = 2**half - 1
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        index = left << half | right
        if index < rows:
            return index


def batch_of_row(row: list[int], eod: int, pad: int | None) -> dict[str, list[int]]:
    """The four arrays of the contract for one row, id by id."""
    filler = eod if pad is None else pad
    end = len(row)
    while end > 0 and row[end - 1] == filler:
        end -= 1
    if pad is None and end < len(row):
        end += 1  # the first EOD of the trailing run ends a document
    positions, segments, position, segment = [], [], 0, 1
    for place, token in enumerate(row):
        positions.append(position if place < end else 0)
        segments.append(segment if place < end else 0)
        position += 1
        if token == eod:
            position, segment = 0, segment + 1
    labels = [-100 if i + 1 >= end or row[i] == eod else row[i + 1] for i in range(len(row) - 1)]
    return {
        "input_ids": row[:-1],
        "labels": labels,
        "position_ids": positions[:-1],
        "segment_ids": segments[:-1],
    }


def write(folder: Path) -> None:
    """Writes `order.json`: whole permutations (of 1000 rows the first 20) and single values far out."""
    permutations = [
        {"seed": s, "epoch": e, "rows": n, "order": [order(s, e, i, n) for i in range(min(n, 20 if n == 1000 else n))]}
        for s, e, n in _PERMUTATIONS
    ]
    far = [
        {"seed": seed, "epoch": epoch, "rows": 10**8, "index": i, "row": order(seed, epoch, i, 10**8)}
        for seed, epoch in ((0, 0), (1234, 2))
        for i in (0, 1, 2, 12345678, 10**8 - 1)
    ]
    write_json(folder / "order.json", {"permutations": permutations, "values": far})


def _mix(z: int) -> int:
    z &= _WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _WORD
    return z ^ z >> 31
