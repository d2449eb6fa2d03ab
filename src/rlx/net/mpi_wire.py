"""How one message of rlx travels as MPI messages: a header, and pieces that fit an int count.

The header (`<payload bytes u64, stamp bytes u16, pieces u32>`, the stamp, the pieces' sizes) goes
first; a small payload rides in it. Pieces follow under the same tag. MPI keeps messages between two
ranks under one tag in order (MPI-4.1, 3.5), so the receives posted for a header's pieces match
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rlx.errors import LimitExceeded, Malformed
from rlx.net.transport import MAX_STAMP_BYTES, Outgoing

EAGER_BYTES = 2048
"""A payload up to this size rides in the header's message: below the eager limit of common MPIs."""

CHUNK_BYTES = 1 << 30
MAX_PIECES = 1 << 16

_HEAD = struct.Struct("<QHI")
MAX_HEADER_BYTES = _HEAD.size + MAX_STAMP_BYTES + 8 * MAX_PIECES + EAGER_BYTES


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says: the stamp, and either the payload itself or the sizes of its pieces."""

    stamp: bytes
    payload_bytes: int
    pieces: tuple[int, ...]
    payload: memoryview


def encode(message: Outgoing, chunk_bytes: int) -> tuple[bytes, list[memoryview]]:
    """The header of a message, and the pieces that follow it."""
    views = [memoryview(buffer).cast("B") for buffer in message.buffers if len(buffer)]
    size = sum(len(view) for view in views)
    if size <= EAGER_BYTES:
        head = _HEAD.pack(size, len(message.stamp), 0)
        return b"".join([head, message.stamp, *views]), []
    pieces = [piece for view in views for piece in _cut(view, chunk_bytes)]
    if len(pieces) > MAX_PIECES:
        raise LimitExceeded(f"a message of {size} bytes has {len(pieces)} pieces; {MAX_PIECES} fit")
    head = _HEAD.pack(size, len(message.stamp), len(pieces))
    sizes = struct.pack(f"<{len(pieces)}Q", *(len(piece) for piece in pieces))
    return head + message.stamp + sizes, pieces


def decode(data: bytes) -> Header:
    """The header that `data` encodes; anything else is a `WireError`."""
    if len(data) < _HEAD.size:
        raise Malformed(f"a header of {len(data)} bytes is too short")
    size, stamp_bytes, count = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if stamp_bytes > MAX_STAMP_BYTES or count > MAX_PIECES:
        raise LimitExceeded("a header announces a stamp or a number of pieces over the limit")
    rest = body[stamp_bytes:]
    if len(body) < stamp_bytes or len(rest) != (8 * count if count else size):
        raise Malformed(f"a header of {len(data)} bytes does not hold what it announces")
    pieces = struct.unpack(f"<{count}Q", rest) if count else ()
    if count and sum(pieces) != size:
        raise Malformed("a header's pieces do not add up to its payload")
    return Header(bytes(body[:stamp_bytes]), size, pieces, rest if not count else body[:0])


def cut_by(view: memoryview, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    """`view` in consecutive parts of the given sizes."""
    start = 0
    for size in sizes:
        yield view[start : start + size]
        start += size


def _cut(view: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(view), size):
        yield view[start : start + size]
