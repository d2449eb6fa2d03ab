"""A look at the structure of MessagePack bytes before any decoder allocates for them.

Every length is held against the bytes that are left, and the nesting and the number of items
against limits, so that five bytes cannot ask for a list of four billion. Format: the MessagePack
specification (github.com/msgpack/msgpack, spec.md).
"""

from __future__ import annotations

from rlx.errors import LimitExceeded, Malformed, Truncated

MAX_DEPTH = 16
MAX_ITEMS = 8_000_000

# First byte -> (bytes of payload) for scalars, or (bytes of length) for what carries a length.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def scan(body: bytes) -> None:
    """Raise `WireError` unless `body` is exactly one value within the limits."""
    position = 0
    items = 0
    waiting = [1]  # how many values each open container still wants
    while waiting:
        if waiting[-1] == 0:
            waiting.pop()
            continue
        waiting[-1] -= 1
        items += 1
        position, inside = _item(body, position)
        if inside:
            if inside > len(body) - position:
                raise Truncated(f"a container of {inside} values ends after fewer")
            waiting.append(inside)
        if items > MAX_ITEMS:
            raise LimitExceeded(f"more than {MAX_ITEMS} values")
        if len(waiting) > MAX_DEPTH:
            raise LimitExceeded(f"containers nest deeper than {MAX_DEPTH}")
    if position != len(body):
        raise Malformed(f"{len(body) - position} bytes follow the value")


def _item(body: bytes, position: int) -> tuple[int, int]:
    """Read one head; return the position after it and its content, and the values inside it."""
    if position >= len(body):
        raise Truncated(f"a value is missing at byte {position}")
    head = body[position]
    position += 1
    if head <= 0x7F or head >= 0xE0:
        return position, 0
    if head <= 0x8F:
        return position, 2 * (head & 0x0F)
    if head <= 0x9F:
        return position, head & 0x0F
    if head <= 0xBF:
        return _skip(body, position, head & 0x1F), 0
    if head in _FIXED:
        return _skip(body, position, _FIXED[head]), 0
    for table in (_SIZED, _ARRAYS, _MAPS):
        if head in table:
            after = _skip(body, position, table[head])
            length = int.from_bytes(body[position:after], "big")
            if table is _SIZED:
                return _skip(body, after, length), 0
            return after, length * (2 if table is _MAPS else 1)
    raise Malformed(f"byte {head:#04x} at {position - 1} begins no value of this format")


def _skip(body: bytes, position: int, count: int) -> int:
    if count > len(body) - position:
        raise Truncated(f"{count} bytes are announced at byte {position}, {len(body)} are there")
    return position + count
