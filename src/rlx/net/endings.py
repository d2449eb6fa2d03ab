"""How a wait that cannot end well is told: who was waited for, for what, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.errors import DeadlineExceeded, PeerLost, RlxError, TransportError, WireError
from rlx.net.deadline import Deadline
from rlx.net.links import Link
from rlx.net.mailbox import Mailbox, Operation, describe
from rlx.net.notices import Notice


def died(peer: int) -> Notice:
    """A connection ended without a goodbye, and nobody said why."""
    return Notice.of_loss(peer, f"rank {peer} died: its connection ended without a goodbye")


def left(peer: int, what: str) -> PeerLost:
    """A peer left in order while something was expected of it."""
    return PeerLost(peer, f"rank {peer} left (closed its transport) while {what}")


def cut(rank: int, peer: int, what: str) -> TransportError:
    """A link whose frames cannot be told apart any more."""
    return TransportError(
        f"rank {rank}: the link to rank {peer} is broken, because an exchange on it ended in the "
        f"middle of a message; {what}"
    )


def repeat(error: WireError, what: str) -> RlxError:
    """The same error again, for one more wait."""
    return type(error)(f"{error} (while {what}); the link is closed")


def late(
    rank: int,
    operation: Operation,
    links: Mapping[int, Link],
    own: Mailbox,
    deadline: Deadline,
) -> DeadlineExceeded:
    """An exchange whose time is up: the peers not heard from, and what was awaited of each."""
    missing = {
        peer: waits
        for peer in sorted(operation.peers)
        if (waits := links[peer].waits_of(operation))
    }
    if to_itself := _own_waits(operation, own):
        missing[rank] = to_itself
    text = "; ".join(
        f"rank {peer}: {waits[0]}" + (f" and {len(waits) - 1} more" if waits[1:] else "")
        for peer, waits in missing.items()
    )
    return DeadlineExceeded(
        f"rank {rank} waited {deadline.elapsed():.3g} s in vain for {text}", missing
    )


def _own_waits(operation: Operation, own: Mailbox) -> list[str]:
    waits = [
        f"a message ({slot.describe()}) was expected of it"
        for slot in own.slots()
        if slot.operation is operation
    ]
    waits += [
        f"a message ({describe(tag, parcel.stamp)}) that no slot takes"
        for tag, parcel in own.held_back()
        if parcel.operation is operation
    ]
    return waits
