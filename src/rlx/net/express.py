"""The express way of an exchange of small messages between ranks that share memory.

Most exchanges are a collective's: one small message to each peer and one from each, on links where
nothing else is under way. A frame is then written to the ring whole, and the frame that is expected
is compared with what is there, header and stamp as one string of bytes: nothing is parsed, no slot
is queued, and no call of the system is made. Whatever is not exactly so is left to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from rlx.net.frames import byte_view, pack_message_header
from rlx.net.links import Link
from rlx.net.ring import RingStream
from rlx.net.transport import Incoming, Outgoing

_Expected: TypeAlias = tuple[RingStream, bytes, memoryview, Incoming]

_LARGEST_BYTES: Final = 16 * 1024
_LOOKS: Final = 200


def exchange_small(
    links: Mapping[int, Link],
    sends: Sequence[Outgoing],
    receives: Sequence[Incoming],
    go_on: Callable[[], bool],
) -> tuple[Sequence[Outgoing], Sequence[Incoming]]:
    """Move what can go this way; returns what is left, in order.

    `go_on` gives way to other ranks, and says whether to look once more.
    """
    for place, message in enumerate(sends):
        link = links.get(message.peer)
        ring = None if link is None else link.quiet_ring
        frame = None if ring is None else _frame(message)
        if ring is None or frame is None or not ring.put(frame):
            return sends[place:], receives
    expected = []
    for slot in receives:
        link = links.get(slot.peer)
        ring = None if link is None or link.mailbox.is_in_use else link.quiet_ring
        view = byte_view(slot.buffer)
        if ring is None or len(view) > _LARGEST_BYTES:
            return (), receives
        head = pack_message_header(slot.tag, len(slot.stamp), len(view)) + slot.stamp
        expected.append((ring, head, view, slot))
    return (), _take(expected, go_on)


def _frame(message: Outgoing) -> bytes | None:
    size = 0
    for buffer in message.buffers:
        size += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
    if size > _LARGEST_BYTES:
        return None
    head = pack_message_header(message.tag, len(message.stamp), size)
    return b"".join((head, message.stamp, *message.buffers))


def _take(expected: list[_Expected], go_on: Callable[[], bool]) -> list[Incoming]:
    """Take what is expected as it comes; returns the slots that are left to the engine."""
    for _ in range(_LOOKS):
        missing = []
        is_other = False
        for one in expected:
            ring, head, view, _ = one
            taken = ring.take(head, view)
            if not taken:
                missing.append(one)
                is_other = is_other or taken is False
        expected = missing
        if not missing or is_other or not go_on():
            break
    return [slot for _, _, _, slot in expected]
