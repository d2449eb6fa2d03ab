"""What a transport is: one data primitive, `exchange`, and the promises that hold for every form.

The promises ("laws") are shipped as runnable functions in `rlx.testing.laws`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from rlx.errors import LimitExceeded, PeerLost, RemoteError, TransportError, UsageError
from rlx.net.deadline import Deadline
from rlx.net.heap import Heap

Buffer: TypeAlias = bytes | bytearray | memoryview
"""C-contiguous bytes. A `memoryview` must be cast to format "B" (`memoryview(a).cast("B")`)."""

MAX_TAG = 32767
"""The largest tag that MPI guarantees (MPI-4.1, 9.1.2, MPI_TAG_UB); the same bound on every
form."""

MAX_STAMP_BYTES = 1024
"""A stamp describes a call in a line of text; a longer one is refused by sender and receiver."""

_LENGTH_STAMP = b"rlx:length"
_CONTENT_STAMP = b"rlx:content"


# Not frozen: making a frozen one takes a microsecond, of which a small collective has few.
@dataclass(slots=True)
class Outgoing:
    """One message to send: the bytes of `buffers`, one after the other, to `peer` under `tag`.

    `stamp` says what the message is; the receiver compares it with what it expects.
    """

    peer: int
    tag: int
    stamp: bytes
    buffers: Sequence[Buffer] = ()


@dataclass(slots=True)
class Incoming:
    """One slot to fill: exactly `len(buffer)` bytes from `peer` under `tag`, stamped `stamp`."""

    peer: int
    tag: int
    stamp: bytes
    buffer: bytearray | memoryview = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What came from `peer` where another stamp or size was expected; its content was dropped."""

    peer: int
    tag: int
    expected_stamp: bytes
    expected_bytes: int
    stamp: bytes
    bytes: int


class MessageMismatch(TransportError):
    """Messages came whose stamp or size is not what their slots expected.

    It is raised when the whole exchange is done: every send has gone out and every slot has been
    filled or found wrong, so each rank of a symmetric exchange learns the same facts.
    """

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        first = mismatches[0]
        super().__init__(
            f"rank {first.peer} sent {first.bytes} bytes stamped {first.stamp!r} under tag "
            f"{first.tag}; expected {first.expected_bytes} bytes stamped {first.expected_stamp!r}"
        )
        self.mismatches = tuple(mismatches)


def raise_cause(error: BaseException, mismatches: Sequence[Mismatch]) -> NoReturn:
    """Raise the error of an exchange; where a rank's end cut it short, a mismatch that it has seen.

    A rank that saw it too leaves, a third one misses that rank and says so; who hears of that
    before its own exchange is done would else blame the rank that left.
    """
    if mismatches and isinstance(error, PeerLost | RemoteError):
        raise MessageMismatch(mismatches) from error
    raise error


class NetTransport(ABC):
    """Bytes between the ranks of one job. Made by a form's own constructor, ended by `close`.

    All methods may be called from several threads at once, provided that no two threads use the
    same tag with the same peer in the same direction at the same time.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's number, 0 <= rank < world_size."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def heap(self) -> Heap | None:
        """Memory that this rank shares with its near peers, or None where it has none."""
        return None

    @abstractmethod
    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        """Send every message and fill every slot, in any order; return when all are done.

        On return the send buffers are the caller's again and the slots are whole. Messages between
        two ranks under one tag arrive in order; other tags are never held up by them. A rank may
        send to itself.

        Raises
        ------
        MessageMismatch
            A message's stamp or size was not what its slot expects. Everything else was still done,
            unless a rank's end cut it short, which is then the `__cause__`; the wrong content was
            read off and dropped, and the slot's buffer was not written.
        DeadlineExceeded
            Time ran out; `peers` names the ranks not heard from. What was not done is withdrawn:
            no buffer of the caller is touched afterwards. A message cut off midway breaks the link
            to its peer, and later calls on that link raise.
        PeerLost
            A rank that this exchange waits for, or one that such a rank waited for, died or left;
            `rank` is the one that went first.
        RemoteError
            Another rank called `abort`.
        ClosedError
            `close` was called before or meanwhile.
        UsageError
            A peer, tag, stamp or buffer is out of range; nothing was sent.
        """

    def trade(
        self,
        tag: int,
        stamp: bytes,
        content: bytes,
        slots: Sequence[tuple[int, memoryview]],
        *,
        deadline: Deadline,
    ) -> None:
        """Send `content` to each peer of `slots`, and fill each of these slots by a message.

        An `exchange` in which every message has one tag, stamp and content. A form may have a
        shorter way for it; the promises are the same.
        """
        self.exchange(
            [Outgoing(peer, tag, stamp, (content,)) for peer, _ in slots],
            [Incoming(peer, tag, stamp, slot) for peer, slot in slots],
            deadline=deadline,
        )

    @abstractmethod
    def abort(self, reason: str | BaseException) -> None:
        """Tell every other rank that this one gives up, and why; then close.

        The others' present and later waits raise `RemoteError` with this rank and the reason. If
        the reason is itself a `PeerLost` or `RemoteError`, the rank that it blames stays the one
        blamed. Never blocks for longer than about a second, and runs no collective.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave in order. Messages already sent still arrive. Twice is fine. Nothing is left
        open."""

    def send(self, peer: int, tag: int, data: Buffer, *, deadline: Deadline) -> None:
        """Send `data`, whose size the receiver need not know beforehand."""
        view = memoryview(data)
        content: Buffer = view.cast("B") if view.nbytes else b""
        length = view.nbytes.to_bytes(8, "little")
        self.exchange(
            [
                Outgoing(peer, tag, _LENGTH_STAMP, (length,)),
                Outgoing(peer, tag, _CONTENT_STAMP, (content,)),
            ],
            (),
            deadline=deadline,
        )

    def receive(self, peer: int, tag: int, *, limit_bytes: int, deadline: Deadline) -> bytearray:
        """Receive what `send` sent. A size over `limit_bytes` raises before anything is allocated.

        After `LimitExceeded` the content is still under way and the tag is of no further use.
        """
        length = bytearray(8)
        self.exchange((), [Incoming(peer, tag, _LENGTH_STAMP, length)], deadline=deadline)
        size = int.from_bytes(length, "little")
        if size > limit_bytes:
            raise LimitExceeded(
                f"rank {peer} sends {size} bytes to rank {self.rank} under tag {tag}; "
                f"the limit is {limit_bytes}"
            )
        content = bytearray(size)
        self.exchange((), [Incoming(peer, tag, _CONTENT_STAMP, content)], deadline=deadline)
        return content

    def _check_exchange(self, sends: Sequence[Outgoing], receives: Sequence[Incoming]) -> None:
        """Refuse what no form can carry, before anything moves. For the forms' own use."""
        world_size = self.world_size
        for messages in (sends, receives):
            for message in messages:
                if (
                    not 0 <= message.peer < world_size
                    or not 0 <= message.tag <= MAX_TAG
                    or len(message.stamp) > MAX_STAMP_BYTES
                ):
                    raise self._refusal(message)
        for slot in receives:
            view = memoryview(slot.buffer)
            if view.readonly or not view.c_contiguous:
                what = "read-only" if view.readonly else "not C-contiguous"
                raise UsageError(f"the slot for rank {slot.peer}, tag {slot.tag} is {what}")

    def _may_shorten(self, tag: int, stamp: bytes, slots: Sequence[tuple[int, memoryview]]) -> bool:
        """Whether a form may go its shorter way of a trade; where not, `exchange` says what is
        wrong. For the forms' own use."""
        world_size = self.world_size
        for peer, slot in slots:
            if not 0 <= peer < world_size or slot.readonly or not slot.c_contiguous:
                return False
        return 0 <= tag <= MAX_TAG and len(stamp) <= MAX_STAMP_BYTES

    def _refusal(self, message: Outgoing | Incoming) -> UsageError:
        if not 0 <= message.peer < self.world_size:
            return UsageError(
                f"rank {self.rank}: there is no peer {message.peer} in a world of {self.world_size}"
            )
        if not 0 <= message.tag <= MAX_TAG:
            return UsageError(f"tag {message.tag} is outside 0..{MAX_TAG}")
        return UsageError(
            f"a stamp of {len(message.stamp)} bytes is over the limit of {MAX_STAMP_BYTES}"
        )
