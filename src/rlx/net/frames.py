"""The frame: how one message lies on a data connection. Knows bytes and limits, and no sockets.

A frame is a fixed header, the stamp, then the content:

    magic "rx" | version u8 | kind u8 | tag u16 | stamp bytes u16 | content bytes u64

all little-endian. A header is judged against the limits before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rlx.errors import LimitExceeded, Malformed, UnknownVersion, UsageError
from rlx.net.transport import MAX_STAMP_BYTES, MAX_TAG, Buffer

HEADER = struct.Struct("<2sBBHHQ")
MAGIC = b"rx"
VERSION = 1
MESSAGE = 1
GOODBYE = 2

# Linux, the BSDs and macOS all take 1024 pieces a call (IOV_MAX); POSIX promises only 16.
IOV_MAX = 1024


@dataclass(frozen=True)
class Limits:
    """What one transport may be asked for. All are counts of bytes."""

    frame_bytes: int = 1 << 40
    """The largest content of one frame; a header that says more breaks the link."""

    inbox_bytes: int = 1 << 30
    """What messages that no slot expects yet may take, over all peers."""

    call_bytes: int = 1 << 30
    """The most that one system call is given; Linux moves at most 2^31 - 4096 in any case."""

    def __post_init__(self) -> None:
        if self.frame_bytes < 0 or self.inbox_bytes < 0 or self.call_bytes < 1:
            raise UsageError(f"limits are counts of bytes, call_bytes at least 1; got {self}")


def pack_message_header(tag: int, stamp_bytes: int, content_bytes: int) -> bytes:
    """The header of a message; its stamp and its content follow."""
    return HEADER.pack(MAGIC, VERSION, MESSAGE, tag, stamp_bytes, content_bytes)


def pack_goodbye() -> bytes:
    """The last frame of a rank that leaves in order."""
    return HEADER.pack(MAGIC, VERSION, GOODBYE, 0, 0, 0)


def unpack_header(
    buffer: bytes | bytearray | memoryview, offset: int, *, peer: int, limit_bytes: int
) -> tuple[int, int, int, int]:
    """Kind, tag, stamp bytes and content bytes of the header at `offset`, all within limits.

    Raises
    ------
    Malformed, UnknownVersion, LimitExceeded
        The header is not one that rank `peer` may send. Nothing was allocated.
    """
    magic, version, kind, tag, stamp_bytes, content_bytes = HEADER.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise Malformed(f"rank {peer} sent {bytes(magic)!r} where a frame starts with {MAGIC!r}")
    if version != VERSION:
        raise UnknownVersion(f"rank {peer} sent a frame of version {version}; read: {VERSION}")
    if kind == GOODBYE and not (tag or stamp_bytes or content_bytes):
        return GOODBYE, 0, 0, 0
    if kind != MESSAGE:
        raise Malformed(
            f"rank {peer} sent a frame of unknown kind {kind}, or a goodbye with content"
        )
    if tag > MAX_TAG:
        raise LimitExceeded(f"rank {peer} sent a frame under tag {tag}; the largest is {MAX_TAG}")
    if stamp_bytes > MAX_STAMP_BYTES:
        raise LimitExceeded(
            f"rank {peer} sent a stamp of {stamp_bytes} bytes; the limit is {MAX_STAMP_BYTES}"
        )
    if content_bytes > limit_bytes:
        raise LimitExceeded(
            f"rank {peer} announced a frame of {content_bytes} bytes under tag {tag}; "
            f"the limit is {limit_bytes}"
        )
    return MESSAGE, tag, stamp_bytes, content_bytes


def content_bytes(buffers: Iterable[Buffer]) -> int:
    """How many bytes the pieces of a content have together."""
    size = 0
    for buffer in buffers:
        size += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
    return size


def byte_view(buffer: Buffer) -> memoryview:
    """The bytes of a C-contiguous buffer, as a flat view of format "B"."""
    view = memoryview(buffer)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    if not view.c_contiguous:
        raise UsageError("a buffer must be C-contiguous; copy it first")
    # A view with a zero in its shape cannot be cast, and has no bytes in any case.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def pieces_for_one_call(views: Iterable[memoryview], call_bytes: int) -> list[memoryview]:
    """The leading pieces that one system call may be given: IOV_MAX, of `call_bytes` in all."""
    pieces: list[memoryview] = []
    room = call_bytes
    for view in views:
        if len(pieces) == IOV_MAX or room == 0:
            break
        piece = view if len(view) <= room else view[:room]
        pieces.append(piece)
        room -= len(piece)
    return pieces


def drop_sent(views: deque[memoryview], sent_bytes: int) -> None:
    """Remove the first `sent_bytes` from `views`, which hold no empty piece."""
    while sent_bytes:
        head = views[0]
        if len(head) > sent_bytes:
            views[0] = head[sent_bytes:]
            return
        sent_bytes -= len(head)
        views.popleft()
