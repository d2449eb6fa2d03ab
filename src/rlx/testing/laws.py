"""The laws that hold for every transport, as functions that someone who writes a new one can run.

Each law is a body that every rank runs at the same time on a fresh transport:

    run_on_mesh(my_mesh(3), LAWS["messages under one tag arrive in order"].body)

It raises where the law does not hold. `dying`, which needs a way to die, and `huge_message`, which
needs memory, stand apart from the table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError, TransportError
from rlx.net import (
    FIRST_USER_TAG,
    Deadline,
    Incoming,
    MessageMismatch,
    NetTransport,
    Outgoing,
)

TAG = FIRST_USER_TAG
STAMP = b"law"


class Body(Protocol):
    """What every rank runs; `deadline_s` bounds each of its waits."""

    def __call__(self, transport: NetTransport, *, deadline_s: float = 20.0) -> None: ...


@dataclass(frozen=True)
class Law:
    """A law: its body, and the least number of ranks with which it says anything."""

    body: Body
    least_ranks: int


LAWS: dict[str, Law] = {}


def law(text: str, least_ranks: int = 1) -> Callable[[Body], Body]:
    """Register a body under the sentence that it checks."""

    def register(body: Body) -> Body:
        LAWS[text] = Law(body, least_ranks)
        return body

    return register


def content(source: int, target: int, size: int) -> bytes:
    """Bytes that tell who sent them to whom, and where one of them has gone astray."""
    pattern = bytes((source * 31 + target * 17 + place * 7) % 251 for place in range(251))
    return (pattern * (size // 251 + 1))[:size]


def right_of(transport: NetTransport) -> int:
    """The next rank of the ring."""
    return (transport.rank + 1) % transport.world_size


def left_of(transport: NetTransport) -> int:
    """The previous rank of the ring."""
    return (transport.rank - 1) % transport.world_size


def meet(transport: NetTransport, deadline_s: float, tag: int = TAG + 900) -> None:
    """One empty message between every two ranks: nobody returns before all have come."""
    everyone = range(transport.world_size)
    transport.exchange(
        [Outgoing(peer, tag, b"meet") for peer in everyone],
        [Incoming(peer, tag, b"meet") for peer in everyone],
        deadline=Deadline(deadline_s),
    )


@law("messages under one tag arrive in order, and other tags are not held up by them")
def order(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source = right_of(transport), left_of(transport)
    sizes = [3, 0, 5000, 1, 70]
    sends = [
        Outgoing(to, TAG, b"%d" % number, (content(number, to, size),))
        for number, size in enumerate(sizes)
    ]
    last = bytearray(4)
    transport.exchange(
        [*sends, Outgoing(to, TAG + 1, STAMP, (b"last",))],
        [Incoming(source, TAG + 1, STAMP, last)],
        deadline=Deadline(deadline_s),
    )
    assert last == b"last", "a message overtook those of another tag, and came wrong"
    for number, size in enumerate(sizes):
        slot = bytearray(size)
        transport.exchange(
            (), [Incoming(source, TAG, b"%d" % number, slot)], deadline=Deadline(deadline_s)
        )
        assert slot == content(number, transport.rank, size), f"message {number} came wrong"


@law("an exchange of any sizes, in both directions at once, between any ranks, ends")
def no_deadlock(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    sizes = (1 << 20, 17, 3 << 20, 0, 65536, 65537, 250_000)

    def size_of(source: int, target: int) -> int:
        return sizes[(source * 3 + target * 5) % len(sizes)]

    rank, everyone = transport.rank, range(transport.world_size)
    slots = {peer: bytearray(size_of(peer, rank)) for peer in everyone}
    halves = {peer: content(rank, peer, size_of(rank, peer)) for peer in everyone}
    transport.exchange(
        [
            Outgoing(peer, TAG, STAMP, (whole[: len(whole) // 2], whole[len(whole) // 2 :]))
            for peer, whole in halves.items()
        ],
        [Incoming(peer, TAG, STAMP, slots[peer]) for peer in reversed(everyone)],
        deadline=Deadline(deadline_s),
    )
    for peer in everyone:
        expected = content(peer, rank, size_of(peer, rank))
        assert slots[peer] == expected, f"what rank {peer} sent came wrong"


@law("a message to oneself works, and an empty one")
def to_oneself(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    rank = transport.rank
    for size in (0, 1, 1 << 20):
        slot = bytearray(size)
        transport.exchange(
            [Outgoing(rank, TAG, STAMP, (content(rank, rank, size),))],
            [Incoming(rank, TAG, STAMP, slot)],
            deadline=Deadline(deadline_s),
        )
        assert slot == content(rank, rank, size), f"{size} bytes to oneself came wrong"
    transport.send(right_of(transport), TAG, b"", deadline=Deadline(deadline_s))
    got = transport.receive(left_of(transport), TAG, limit_bytes=0, deadline=Deadline(deadline_s))
    assert got == b"", "an empty message came with content"


@law("a message of another stamp or size raises, and nothing is truncated or reinterpreted")
def mismatches(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    sent = [(b"other", 8), (STAMP, 9), (STAMP, 7), (STAMP, 1 << 20), (STAMP, 8)]
    slots = [bytearray(b"untouch!") for _ in sent]
    try:
        transport.exchange(
            [
                Outgoing(to, TAG + place, stamp, (content(rank, to, size),))
                for place, (stamp, size) in enumerate(sent)
            ],
            [Incoming(source, TAG + place, STAMP, slot) for place, slot in enumerate(slots)],
            deadline=Deadline(deadline_s),
        )
    except MessageMismatch as error:
        found = sorted((one.tag - TAG, one.stamp, one.bytes) for one in error.mismatches)
        wrong = [(place, stamp, size) for place, (stamp, size) in enumerate(sent[:4])]
        assert found == wrong, f"the mismatches are {wrong}; the error has {found}"
    else:
        raise AssertionError("four messages that nobody expected were taken")
    assert slots[:4] == [b"untouch!"] * 4, "a slot holds what it did not expect"
    assert slots[4] == content(source, rank, 8), "the message that fits was not delivered"
    meet(transport, deadline_s)


@law("a wait without its peer ends, and names the peer", least_ranks=2)
def deadlines(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    begun = time.monotonic()
    slot = bytearray(8)
    try:
        transport.exchange(
            (), [Incoming(left_of(transport), TAG, STAMP, slot)], deadline=Deadline(0.2)
        )
    except DeadlineExceeded as error:
        assert error.peers == (left_of(transport),), f"{error.peers} were named"
        for fact in (f"rank {transport.rank}", f"{left_of(transport)}", "law"):
            assert fact in str(error), f"{fact!r} is not in {error}"
    else:
        raise AssertionError("a message came that nobody sent")
    assert 0.15 < time.monotonic() - begun < deadline_s, "the wait was not as long as its deadline"
    meet(transport, deadline_s)


@law("after an exchange the send buffers are the caller's, and the slots are whole", least_ranks=2)
def buffers(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    for size in (8, 65536, 1 << 20):
        own = bytearray(content(rank, to, size))
        slot = bytearray(size)
        transport.exchange(
            [Outgoing(to, TAG, STAMP, (own,))],
            [Incoming(source, TAG, STAMP, slot)],
            deadline=Deadline(deadline_s),
        )
        own[:] = bytes(size)
        assert slot == content(source, rank, size), f"{size} bytes changed after they were sent"
        meet(transport, deadline_s)
        assert slot == content(source, rank, size), f"{size} bytes came late"


@law("threads may use one transport at once on different tags")
def threads(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    failures: list[BaseException] = []

    def work(tag: int) -> None:
        try:
            _talk(transport, tag, deadline_s)
        except BaseException as error:  # a thread's outermost edge
            failures.append(error)

    workers = [threading.Thread(target=work, args=(TAG + place,)) for place in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(2 * deadline_s)
    assert not any(worker.is_alive() for worker in workers), "a thread still waits"
    if failures:
        raise failures[0]


def _talk(transport: NetTransport, tag: int, deadline_s: float) -> None:
    rank, everyone = transport.rank, range(transport.world_size)
    deadline = Deadline(deadline_s)
    for number in range(12):
        size = (tag * 7919 + number * 104_729) % 90_000
        slots = {peer: bytearray(size) for peer in everyone}
        stamp = b"%d %d" % (tag, number)
        transport.exchange(
            [Outgoing(peer, tag, stamp, (content(rank + tag, peer, size),)) for peer in everyone],
            [Incoming(peer, tag, stamp, slots[peer]) for peer in everyone],
            deadline=deadline,
        )
        for peer in everyone:
            expected = content(peer + tag, rank, size)
            assert slots[peer] == expected, f"tag {tag}, call {number}, rank {peer}: came wrong"


@law("close may be called twice, what was sent before still arrives, and use after it is an error")
def closing(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source = right_of(transport), left_of(transport)
    slot = bytearray(1000)
    transport.exchange(
        [Outgoing(to, TAG, STAMP, (content(0, 0, 1000),))], (), deadline=Deadline(deadline_s)
    )
    if transport.rank % 2:
        # By now the left neighbour may have closed: what it sent must not be lost with it.
        time.sleep(0.05)
    transport.exchange((), [Incoming(source, TAG, STAMP, slot)], deadline=Deadline(deadline_s))
    assert slot == content(0, 0, 1000), "what a rank sent before it left did not arrive whole"
    transport.close()
    transport.close()
    uses: list[Callable[[], None]] = [
        lambda: meet(transport, 1),
        lambda: transport.send(0, TAG, b"x", deadline=Deadline(1)),
    ]
    for use in uses:
        try:
            use()
        except ClosedError:
            continue
        raise AssertionError("a closed transport was used")


@law("an early leave is named as that", least_ranks=2)
def early_leave(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    leaver = transport.world_size - 1
    if transport.rank == leaver:
        transport.close()
        return
    try:
        transport.exchange(
            (), [Incoming(leaver, TAG, STAMP, bytearray(1))], deadline=Deadline(deadline_s)
        )
    except PeerLost as error:
        assert error.rank == leaver, f"rank {error.rank} is blamed; rank {leaver} left"
        assert "left" in str(error), f"{error} does not say that it left"
    else:
        raise AssertionError("a message came from a rank that left without one")


@law("when a rank aborts, the others raise its reason with its rank", least_ranks=2)
def aborting(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    culprit = transport.world_size - 1
    meet(transport, deadline_s)
    if transport.rank == culprit:
        transport.abort(ValueError("bad lr"))
        return
    error = _failed_wait(transport, deadline_s)
    assert isinstance(error, RemoteError), f"expected RemoteError; got {error!r}"
    facts = (error.rank, error.kind, error.message)
    assert facts == (culprit, "ValueError", "bad lr"), f"the error says {facts}"
    transport.abort(error)  # passing it on must not move the blame


def dying(
    transport: NetTransport, die: Callable[[NetTransport], None], *, deadline_s: float = 20.0
) -> None:
    """When a peer dies, whoever waits for it, or for one that does, names the one that died.

    `die(transport)` ends the last rank as if it had been killed: without a word to the others.
    """
    victim = transport.world_size - 1
    meet(transport, deadline_s)
    if transport.rank == victim:
        die(transport)
        return
    error = _failed_wait(transport, deadline_s)
    assert isinstance(error, PeerLost), f"expected PeerLost; got {error!r}"
    assert error.rank == victim, f"rank {error.rank} is blamed; rank {victim} died"
    transport.abort(error)  # passing it on must not move the blame


def huge_message(
    transport: NetTransport, *, size_bytes: int = (1 << 31) + 1, deadline_s: float = 120.0
) -> None:
    """A message over 2 GiB from rank 0 to the last rank arrives whole. Needs twice that memory."""
    last = transport.world_size - 1
    sends: list[Outgoing] = []
    receives: list[Incoming] = []
    slot = bytearray(size_bytes if transport.rank == last else 0)
    whole = content(1, 2, 251 * 4096)
    repeats, rest = divmod(size_bytes, len(whole))
    if transport.rank == 0:
        pieces = [whole] * repeats + [whole[:rest]]
        sends = [Outgoing(last, TAG, STAMP, pieces)]
    if transport.rank == last:
        receives = [Incoming(0, TAG, STAMP, slot)]
    transport.exchange(sends, receives, deadline=Deadline(deadline_s))
    if transport.rank == last:
        view = memoryview(slot)
        for number in range(repeats):
            part = view[number * len(whole) : (number + 1) * len(whole)]
            assert part == whole, f"byte {number * len(whole)} or one after it came wrong"
        assert view[repeats * len(whole) :] == whole[:rest], "the end came wrong"


def _failed_wait(transport: NetTransport, deadline_s: float) -> TransportError | RemoteError:
    """Wait for a rank that will send nothing: the last one on rank 0, the one before on others."""
    awaited = transport.world_size - 1 if transport.rank == 0 else transport.rank - 1
    try:
        transport.exchange(
            (), [Incoming(awaited, TAG, STAMP, bytearray(1))], deadline=Deadline(deadline_s)
        )
    except (TransportError, RemoteError) as error:
        return error
    raise AssertionError("a message came that nobody sent")


def names(least_ranks: int) -> Sequence[str]:
    """The laws that say something with that many ranks."""
    return [text for text, one in LAWS.items() if one.least_ranks <= least_ranks]
