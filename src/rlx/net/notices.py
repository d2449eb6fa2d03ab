"""Why a job ends: one rank's failure, as it is told to the others. Knows no sockets.

A notice names the rank to blame, which stays the same however many ranks pass it on, so that all
of them name the one that failed first.
"""

from __future__ import annotations

import struct
import traceback
from dataclasses import dataclass

from rlx.errors import LimitExceeded, Malformed, PeerLost, RemoteError, Truncated

_HEAD = struct.Struct("<IBxHII")  # blamed rank, lost, bytes of kind, message and traceback

MAX_KIND_BYTES = 256
MAX_MESSAGE_BYTES = 8 * 1024
MAX_TRACEBACK_BYTES = 48 * 1024
MAX_NOTICE_BYTES = _HEAD.size + MAX_KIND_BYTES + MAX_MESSAGE_BYTES + MAX_TRACEBACK_BYTES


@dataclass(frozen=True, slots=True)
class Notice:
    """One failure. `lost` says that the blamed rank died or vanished, rather than raised."""

    blamed: int
    lost: bool
    kind: str
    message: str
    traceback: str = ""

    @classmethod
    def of_loss(cls, rank: int, message: str) -> Notice:
        """Rank `rank` died, froze or vanished."""
        return cls(rank, True, "PeerLost", message)

    @classmethod
    def of_reason(cls, rank: int, reason: str | BaseException) -> Notice:
        """Why rank `rank` gives up. A failure that blames a rank already keeps that blame."""
        if isinstance(reason, str):
            return cls(rank, False, "Abort", reason)
        if isinstance(reason, PeerLost):
            return cls.of_loss(reason.rank, str(reason))
        if isinstance(reason, RemoteError):
            return cls(reason.rank, False, reason.kind, reason.message, reason.traceback)
        text = "".join(traceback.format_exception(reason))
        return cls(rank, False, type(reason).__name__, str(reason), text)

    def to_error(self) -> PeerLost | RemoteError:
        """A new exception each time: one object raised in several threads mixes its tracebacks."""
        if self.lost:
            return PeerLost(self.blamed, self.message)
        return RemoteError(self.blamed, self.kind, self.message, self.traceback)

    def encode(self) -> bytes:
        """The notice as bytes, at most MAX_NOTICE_BYTES; what is too long is cut."""
        kind = _head_bytes(self.kind, MAX_KIND_BYTES)
        message = _head_bytes(self.message, MAX_MESSAGE_BYTES)
        # The end of a traceback holds the line that failed, so the beginning is what goes.
        trace = self.traceback.encode("utf-8", "replace")[-MAX_TRACEBACK_BYTES:]
        sizes = len(kind), len(message), len(trace)
        return _HEAD.pack(self.blamed, self.lost, *sizes) + kind + message + trace

    @classmethod
    def decode(cls, data: bytes, world_size: int) -> Notice:
        """Read what `encode` wrote; anything else is a `WireError`."""
        if len(data) < _HEAD.size:
            raise Truncated(f"a notice of {len(data)} bytes; its head alone has {_HEAD.size}")
        blamed, lost, kind_bytes, message_bytes, trace_bytes = _HEAD.unpack_from(data)
        if (
            kind_bytes > MAX_KIND_BYTES
            or message_bytes > MAX_MESSAGE_BYTES
            or trace_bytes > MAX_TRACEBACK_BYTES
        ):
            raise LimitExceeded("a notice with a kind, message or traceback over its limit")
        if len(data) != _HEAD.size + kind_bytes + message_bytes + trace_bytes:
            raise Malformed(
                f"a notice of {len(data)} bytes, which are not those that its head says"
            )
        if blamed >= world_size or lost > 1:
            raise Malformed(f"a notice that blames rank {blamed} in a world of {world_size}")
        at = _HEAD.size
        texts = []
        for size in (kind_bytes, message_bytes, trace_bytes):
            texts.append(data[at : at + size].decode("utf-8", "replace"))
            at += size
        return cls(blamed, bool(lost), *texts)


def _head_bytes(text: str, limit_bytes: int) -> bytes:
    return text.encode("utf-8", "replace")[:limit_bytes]
