"""The laws of waits that end: by their deadline, a departure, an abort, a death, or `close`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError, TransportError
from rlx.net import Deadline, Incoming, MessageMismatch, NetTransport, Outgoing
from rlx.testing.law_kit import (
    STAMP,
    TAG,
    Beside,
    Laws,
    content,
    left_of,
    meet,
    raised,
    receive_one,
    right_of,
    send_one,
)

ENDING = Laws()

_UNSENT = "a message came that nobody sent"


@ENDING.add("a wait without its peer ends, and names the peer", least_ranks=2)
def deadlines(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    """A slot that was withdrawn so is the caller's, and the tag goes on as if it had not been."""
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    slot, begun = bytearray(b"untouch!"), time.monotonic()
    error = raised(DeadlineExceeded, lambda: receive_one(transport, source, slot, 0.2), _UNSENT)
    assert error.peers == (source,), f"{error.peers} were named; rank {source} was awaited"
    for fact in (f"rank {rank}", f"rank {source}", "law"):
        assert fact in str(error), f"{fact!r} is not in {error}"
    assert 0.15 < time.monotonic() - begun < deadline_s, "the wait was not as long as its deadline"
    meet(transport, deadline_s)
    late = bytearray(8)
    send_one(transport, to, content(rank, to, 8), deadline_s)
    receive_one(transport, source, late, deadline_s)
    assert late == content(source, rank, 8), "what came after the deadline came wrong"
    assert slot == b"untouch!", "a slot was written to after its deadline"


@ENDING.add("a deadline names the peers that were silent, and no others", least_ranks=3)
def silence(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    others = [peer for peer in range(transport.world_size) if peer != transport.rank]
    send_one(transport, right_of(transport), b"8 bytes.", deadline_s)
    meet(transport, deadline_s)
    error = raised(
        DeadlineExceeded,
        lambda: transport.exchange(
            (),
            [Incoming(peer, TAG, STAMP, bytearray(8)) for peer in others],
            deadline=Deadline(0.2),
        ),
        _UNSENT,
    )
    silent = tuple(peer for peer in others if peer != left_of(transport))
    assert error.peers == silent, f"{error.peers} were named; {silent} were silent"
    meet(transport, deadline_s)


@ENDING.add(
    "a message that nobody takes ends with its deadline, and then comes whole or not at all"
)
def untaken(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    size = 8 << 20
    own = bytearray(content(rank, to, size))
    meet(transport, deadline_s)
    begun = time.monotonic()
    try:
        send_one(transport, to, own, 0.2)
    except DeadlineExceeded as error:
        named = error.peers
    else:
        named = (to,)  # the transport keeps it for its receiver
    spent_s = time.monotonic() - begun
    own[:] = bytes(size)
    assert spent_s < deadline_s, f"a deadline of 0.2 s took {spent_s:.1f} s"
    assert named == (to,), f"{named} were named; rank {to} took nothing"
    slot = bytearray(size)
    try:
        receive_one(transport, source, slot, 0.4)
    except TransportError:
        return  # withdrawn whole, or cut off and refused
    assert slot == content(source, rank, size), "a message changed after its sender's deadline"


@ENDING.add(
    "close may be called twice, what was sent before still arrives, and use after it is an error"
)
def closing(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    slot = bytearray(1000)
    send_one(transport, right_of(transport), content(0, 0, 1000), deadline_s)
    if transport.rank % 2:
        # By now the left neighbour may have closed: what it sent must not be lost with it.
        time.sleep(0.05)
    receive_one(transport, left_of(transport), slot, deadline_s)
    assert slot == content(0, 0, 1000), "what a rank sent before it left did not arrive whole"
    transport.close()
    transport.close()
    _check_closed(transport)


@ENDING.add("close ends the waits of other threads", least_ranks=2)
def closing_meanwhile(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    meet(transport, deadline_s)
    if transport.rank != 0:
        _lost(transport, 0, deadline_s)
        return
    wait = partial(receive_one, transport, 1, bytearray(1), deadline_s)
    waiting = Beside([lambda: raised(ClosedError, wait, _UNSENT)])
    time.sleep(0.1)
    transport.close()
    waiting.join(deadline_s)


@ENDING.add("an early leave is named as that", least_ranks=2)
def early_leave(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    leaver = transport.world_size - 1
    if transport.rank == leaver:
        transport.close()
        return
    error = _lost(transport, leaver, deadline_s)
    assert "left" in str(error), f"{error} does not say that it left"


@ENDING.add("when a rank aborts, the others raise its reason with its rank", least_ranks=2)
def aborting(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    culprit = transport.world_size - 1
    if transport.rank == culprit:
        meet(transport, deadline_s)
        transport.abort(ValueError("bad lr"))
        _check_closed(transport)
        return
    error = _failed_wait(transport, deadline_s)
    assert isinstance(error, RemoteError), f"expected RemoteError; got {error!r}"
    facts = (error.rank, error.kind, error.message)
    assert facts == (culprit, "ValueError", "bad lr"), f"the error says {facts}"
    transport.abort(error)  # passing it on must not move the blame


@ENDING.add("what came wrong is the cause, not a rank that ends because of it", least_ranks=3)
def first_cause(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    """A wrong message of rank 1 has come to rank 0 when the last rank, which it awaits, ends.

    It came before rank 1 met the others, so that no timing decides what rank 0 raises.
    """
    culprit, last, deadline = 1, transport.world_size - 1, Deadline(deadline_s)
    if transport.rank == culprit:
        send_one(transport, 0, b"wrong size", deadline_s)
    meet(transport, deadline_s)
    if transport.rank == last:
        for peer in range(last):
            receive_one(transport, peer, bytearray(4), deadline_s)
        transport.abort(PeerLost(culprit, "rank 1 left"))
    elif transport.rank == 0:
        slots = [Incoming(peer, TAG, STAMP, bytearray(4)) for peer in (culprit, last)]
        sends = [Outgoing(last, TAG, STAMP, (b"here",))]
        error = raised(
            MessageMismatch,
            lambda: transport.exchange(sends, slots, deadline=deadline),
            "what came wrong was taken",
        )
        assert [one.peer for one in error.mismatches] == [culprit], f"{error.mismatches} came wrong"
    else:
        send_one(transport, last, b"left", deadline_s)


def dying(
    transport: NetTransport, die: Callable[[NetTransport], None], *, deadline_s: float = 20.0
) -> None:
    """When a peer dies, whoever waits for it, or for one that does, names the one that died.

    `die(transport)` ends the last rank as if it had been killed: without a word to the others.
    """
    victim = transport.world_size - 1
    if transport.rank == victim:
        meet(transport, deadline_s)
        die(transport)
        return
    error = _failed_wait(transport, deadline_s)
    assert isinstance(error, PeerLost), f"expected PeerLost; got {error!r}"
    assert error.rank == victim, f"rank {error.rank} is blamed; rank {victim} died"
    transport.abort(error)  # passing it on must not move the blame


def _lost(transport: NetTransport, leaver: int, deadline_s: float) -> PeerLost:
    """The error of a wait for a rank that leaves."""
    error = raised(
        PeerLost, lambda: receive_one(transport, leaver, bytearray(1), deadline_s), _UNSENT
    )
    assert error.rank == leaver, f"rank {error.rank} is blamed; rank {leaver} left"
    return error


def _check_closed(transport: NetTransport) -> None:
    uses: list[Callable[[], object]] = [
        lambda: meet(transport, 1),
        lambda: send_one(transport, 0, b"x", 1),
        lambda: receive_one(transport, 0, bytearray(1), 1),
    ]
    for use in uses:
        raised(ClosedError, use, "a closed transport was used")


def _failed_wait(transport: NetTransport, deadline_s: float) -> TransportError | RemoteError:
    """The error of the wait that a rank's end leaves without its message.

    That rank ends once it has met the others, which may still be meeting each other by then.
    Afterwards rank 0 waits for the last one, and each other rank for the one before it.
    """
    awaited = transport.world_size - 1 if transport.rank == 0 else transport.rank - 1
    try:
        meet(transport, deadline_s)
        receive_one(transport, awaited, bytearray(1), deadline_s)
    except (TransportError, RemoteError) as error:
        return error
    raise AssertionError(_UNSENT)
