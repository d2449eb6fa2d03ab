"""How one message of rlx travels as MPI messages: a header, pieces that fit an int count, a tail.

The header (`<payload bytes u64, stamp bytes u16, pieces u32>`, the stamp, the pieces' sizes) goes
first. A small payload rides in it, and a middling one follows as one piece; both are copies. Of a
large one the pieces are the caller's own memory, and after them, when MPI has read the last, comes
the tail: one byte that says whether the memory was the message's all that time. A sender whose
deadline passed says that it was not, since MPI cannot take a send back and the caller may have
written there since.

All of a message goes under one tag. MPI keeps messages between two ranks under one tag in order
(MPI-4.1, 3.5), so the receives posted for a header's pieces match them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlx.errors import LimitExceeded, Malformed
from rlx.net.transport import MAX_STAMP_BYTES, Outgoing

EAGER_BYTES = 2048
"""A payload up to this size rides in the header's message: below the eager limit of common MPIs."""

COPY_BYTES = 1 << 16
"""A payload up to this size is copied when it is sent, and its sender waits for nobody."""

CHUNK_BYTES = 1 << 30
MAX_CHUNK_BYTES = (1 << 31) - 1
JOIN_BYTES = 1 << 16
"""Of a large message, neighbouring buffers are copied into one piece up to this size."""

MAX_PIECES = 1 << 16

WHOLE = b"\x01"
CUT = b"\x00"

_HEAD = struct.Struct("<QHI")
MAX_HEADER_BYTES = _HEAD.size + MAX_STAMP_BYTES + max(8 * MAX_PIECES, EAGER_BYTES)


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says: the stamp, and either the payload itself or the sizes of its pieces."""

    stamp: bytes
    payload_bytes: int
    pieces: tuple[int, ...]
    payload: memoryview

    @property
    def has_tail(self) -> bool:
        """Whether a tail follows the pieces."""
        return self.payload_bytes > COPY_BYTES


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message as it goes out: copies that are sent first, then pieces of the caller's memory."""

    copies: list[bytes]
    pieces: list[memoryview]


def encode(message: Outgoing, chunk_bytes: int) -> Parcel:
    """What goes out for a message."""
    views = [memoryview(buffer).cast("B") for buffer in message.buffers if len(buffer)]
    size = sum(len(view) for view in views)
    if size <= EAGER_BYTES:
        head = _HEAD.pack(size, len(message.stamp), 0)
        return Parcel([b"".join([head, message.stamp, *views])], [])
    pieces = [piece for view in _joined(views) for piece in _cut(view, chunk_bytes)]
    if len(pieces) > MAX_PIECES:
        raise LimitExceeded(f"a message of {size} bytes has {len(pieces)} pieces; {MAX_PIECES} fit")
    head = _HEAD.pack(size, len(message.stamp), len(pieces))
    sizes = struct.pack(f"<{len(pieces)}Q", *(len(piece) for piece in pieces))
    header = head + message.stamp + sizes
    if size <= COPY_BYTES:
        return Parcel([header, *(bytes(piece) for piece in pieces)], [])
    return Parcel([header], pieces)


def decode(data: bytes | bytearray) -> Header:
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
    if count and (sum(pieces) != size or not 0 < min(pieces) <= max(pieces) <= MAX_CHUNK_BYTES):
        raise Malformed("a header's pieces do not add up to its payload, or one is out of range")
    return Header(bytes(body[:stamp_bytes]), size, pieces, rest if not count else body[:0])


def cut_by(view: memoryview, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    """`view` in consecutive parts of the given sizes."""
    start = 0
    for size in sizes:
        yield view[start : start + size]
        start += size


def _joined(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """The same bytes, in which small neighbours have become one."""
    run: list[memoryview] = []
    run_bytes = 0
    for view in views:
        if run and run_bytes + len(view) > JOIN_BYTES:
            yield _as_one(run)
            run, run_bytes = [], 0
        run.append(view)
        run_bytes += len(view)
    if run:
        yield _as_one(run)


def _as_one(run: list[memoryview]) -> memoryview:
    return run[0] if len(run) == 1 else memoryview(b"".join(run))


def _cut(view: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, len(view), size):
        yield view[start : start + size]
