"""The express way: small messages on links where nothing else is under way.

Most exchanges are a collective's: one small message to each peer and one from each. A frame is then
written to the stream whole, and the frame that is expected is compared with what is there, header
and stamp as one string of bytes: nothing is parsed and no slot is queued. Whatever is not exactly
so is left to the engine, with the messages that are not moved yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from rlx.net.crossovers import EXPRESS_BYTES
from rlx.net.frames import byte_view, content_bytes, pack_message_header
from rlx.net.links import Link
from rlx.net.mailbox import Operation
from rlx.net.transport import Incoming, Outgoing

Expected: TypeAlias = tuple[Link, bytes, memoryview]
"""A message to come: its link, its header and stamp, and where its content goes."""


def put(links: Mapping[int, Link], message: Outgoing, operation: Operation) -> bool:
    """Send a message; False where nothing of it can go at once. `operation` waits for a rest."""
    link = links.get(message.peer)
    if link is None or not link.is_quiet:
        return False
    size = content_bytes(message.buffers)
    if size > EXPRESS_BYTES:
        return False
    head = pack_message_header(message.tag, len(message.stamp), size)
    return link.put_whole(b"".join((head, message.stamp, *message.buffers)), operation)


def expected(links: Mapping[int, Link], slots: Sequence[Incoming]) -> list[Expected]:
    """What the slots expect; nothing where one of them cannot be filled this way."""
    found = []
    for slot in slots:
        link = links.get(slot.peer)
        view = byte_view(slot.buffer)
        if link is None or not link.may_take or len(view) > EXPRESS_BYTES:
            return []
        head = pack_message_header(slot.tag, len(slot.stamp), len(view)) + slot.stamp
        found.append((link, head, view))
    return found


def take(wanted: Sequence[Expected], looks: int, go_on: Callable[[], bool]) -> list[int]:
    """Take what is expected as it comes; the places in `wanted` of what has not come.

    `go_on` gives way to other ranks, and says whether to look once more; at most `looks` times.
    """
    missing = list(range(len(wanted)))
    while True:
        left = []
        is_other = False
        waiting: set[Link] = set()
        for place in missing:
            link, head, view = wanted[place]
            # What comes just after a look in vain is the earlier slot's, not the next one's.
            taken = None if link in waiting else link.take_expected(head, view)
            if not taken:
                left.append(place)
                waiting.add(link)
                is_other = is_other or taken is False
        missing = left
        looks -= 1
        if not missing or is_other or looks <= 0 or not go_on():
            return missing
