"""How one message of rlx travels as MPI messages: a header, a table, pieces that fit an int count,
a tail; most messages have only the first.

The header (`<payload bytes u64, stamp bytes u16, pieces u32>` and the stamp) goes first. A small
payload rides in it, as a copy. Of a large one the pieces are the caller's own memory, and after
them, when MPI has read the last, comes the tail: one byte that says whether the memory was the
message's all that time. A sender whose deadline passed says that it was not, since MPI cannot take
a send back and the caller may have written there since. Where there are several pieces, the table
of their sizes comes between the header and them.

All of a message goes under one tag. MPI keeps messages between two ranks under one tag in order
(MPI-4.1, 3.5), so the receives posted for a header's pieces match them. No header is longer than
`MAX_HEADER_BYTES`, so that the receive for one can be posted before anything of it is known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlx.errors import LimitExceeded, Malformed
from rlx.net.crossovers import INLINE_BYTES, PACK_BYTES
from rlx.net.frames import content_bytes
from rlx.net.transport import MAX_STAMP_BYTES, Outgoing

CHUNK_BYTES = 1 << 30
MAX_CHUNK_BYTES = (1 << 31) - 1
MAX_PIECES = 1 << 16

WHOLE = b"\x01"
CUT = b"\x00"

_HEAD = struct.Struct("<QHI")
MAX_HEADER_BYTES = _HEAD.size + MAX_STAMP_BYTES + INLINE_BYTES


class Header(NamedTuple):
    """What a header says: the stamp, and the payload itself or the number of its pieces."""

    stamp: bytes
    payload_bytes: int
    pieces: int
    payload: memoryview


class Parcel(NamedTuple):
    """A large message as it goes out: copies, then pieces of the caller's memory, then a tail."""

    copies: list[bytes]
    pieces: list[memoryview]


def head(stamp: bytes, payload_bytes: int, pieces: int) -> bytes:
    """A header, up to a payload that may ride in it."""
    return _HEAD.pack(payload_bytes, len(stamp), pieces) + stamp


def encode_small(message: Outgoing) -> bytes | None:
    """A message that rides in its header as a whole; None where it is too large for that."""
    size = content_bytes(message.buffers)
    if size > INLINE_BYTES:
        return None
    stamp = message.stamp
    return b"".join((_HEAD.pack(size, len(stamp), 0), stamp, *message.buffers))


def encode_large(message: Outgoing, chunk_bytes: int) -> Parcel:
    """What goes out for a message that does not ride in its header."""
    views = [memoryview(buffer).cast("B") for buffer in message.buffers if len(buffer)]
    if len(views) == 1 and len(views[0]) <= chunk_bytes:
        return Parcel([head(message.stamp, len(views[0]), 1)], views)
    size = sum(len(view) for view in views)
    pieces = [piece for view in _joined(views) for piece in _cut(view, chunk_bytes)]
    if len(pieces) > MAX_PIECES:
        raise LimitExceeded(f"a message of {size} bytes has {len(pieces)} pieces; {MAX_PIECES} fit")
    copies = [head(message.stamp, size, len(pieces))]
    if len(pieces) > 1:
        copies.append(struct.pack(f"<{len(pieces)}Q", *(len(piece) for piece in pieces)))
    return Parcel(copies, pieces)


def decode(data: memoryview | bytes) -> Header:
    """The header that `data` encodes; anything else is a `WireError`."""
    if len(data) < _HEAD.size:
        raise Malformed(f"a header of {len(data)} bytes is too short")
    size, stamp_bytes, pieces = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if stamp_bytes > MAX_STAMP_BYTES or pieces > MAX_PIECES:
        raise LimitExceeded("a header announces a stamp or a number of pieces over the limit")
    rest = body[stamp_bytes:]
    if len(body) < stamp_bytes or len(rest) != (0 if pieces else size):
        raise Malformed(f"a header of {len(data)} bytes does not hold what it announces")
    if pieces == 1:
        _check_pieces((size,), size)
    return Header(bytes(body[:stamp_bytes]), size, pieces, rest)


def table_bytes(header: Header) -> int:
    """How long the table is that follows a header; one piece, or none, has none."""
    return 8 * header.pieces if header.pieces > 1 else 0


def decode_table(header: Header, table: bytes | bytearray) -> tuple[int, ...]:
    """The sizes of a header's pieces, from its table; a `WireError` where they cannot be so."""
    sizes = struct.unpack(f"<{header.pieces}Q", table)
    _check_pieces(sizes, header.payload_bytes)
    return sizes


def cut_by(view: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """`view` in consecutive parts of the given sizes."""
    start = 0
    for size in sizes:
        yield view[start : start + size]
        start += size


def _check_pieces(sizes: Sequence[int], payload_bytes: int) -> None:
    if sum(sizes) != payload_bytes or not 0 < min(sizes) <= max(sizes) <= MAX_CHUNK_BYTES:
        raise Malformed("a header's pieces do not add up to its payload, or one is out of range")


def _joined(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """The same bytes, in which small neighbours have become one."""
    run: list[memoryview] = []
    run_bytes = 0
    for view in views:
        if run and run_bytes + len(view) > PACK_BYTES:
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
