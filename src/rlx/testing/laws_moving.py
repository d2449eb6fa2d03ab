"""The laws of messages that move: their order, their sizes, their stamps, and who owns a buffer."""

from __future__ import annotations

from functools import partial

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

MOVING = Laws()


@MOVING.add("messages under one tag arrive in order, and other tags are not held up by them")
def order(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    """Small messages that no slot expects yet do not hold up their sender either."""
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


@MOVING.add("a large message that nobody takes yet holds up no other tag")
def not_held_up(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    size = 4 << 20
    sending = Beside([partial(send_one, transport, to, content(rank, to, size), deadline_s)])
    for number in range(3):
        meet(transport, deadline_s, TAG + 1 + number)
    slot = bytearray(size)
    receive_one(transport, source, slot, deadline_s)
    sending.join(2 * deadline_s)
    assert slot == content(source, rank, size), "the large message came wrong"


@MOVING.add("an exchange of any sizes, in both directions at once, between any ranks, ends")
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


@MOVING.add("a message to oneself works, and an empty one")
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


@MOVING.add("a message of another stamp or size raises, and nothing is truncated or reinterpreted")
def mismatches(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    to, source, rank = right_of(transport), left_of(transport), transport.rank
    sent = [(b"other", 8), (STAMP, 9), (STAMP, 7), (STAMP, 1 << 20), (STAMP, 8)]
    slots = [bytearray(b"untouch!") for _ in sent]
    error = raised(
        MessageMismatch,
        lambda: transport.exchange(
            [
                Outgoing(to, TAG + place, stamp, (content(rank, to, size),))
                for place, (stamp, size) in enumerate(sent)
            ],
            [Incoming(source, TAG + place, STAMP, slot) for place, slot in enumerate(slots)],
            deadline=Deadline(deadline_s),
        ),
        "four messages that nobody expected were taken",
    )
    found = sorted((one.peer, one.tag - TAG, one.stamp, one.bytes) for one in error.mismatches)
    wrong = [(source, place, stamp, size) for place, (stamp, size) in enumerate(sent[:4])]
    assert found == wrong, f"the mismatches are {wrong}; the error has {found}"
    assert slots[:4] == [b"untouch!"] * 4, "a slot holds what it did not expect"
    assert slots[4] == content(source, rank, 8), "the message that fits was not delivered"
    meet(transport, deadline_s)


@MOVING.add(
    "after an exchange the send buffers are the caller's, and the slots are whole", least_ranks=2
)
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


@MOVING.add("threads may use one transport at once on different tags")
def threads(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    Beside([partial(_talk, transport, TAG + place, deadline_s) for place in range(4)]).join(
        2 * deadline_s
    )


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


@MOVING.add("a trade is an exchange of one content with each peer, of any size")
def trades(transport: NetTransport, *, deadline_s: float = 20.0) -> None:
    """Whichever way a form has for it. Each rank sends under the stamp and size of the others."""
    rank, everyone = transport.rank, range(transport.world_size)
    peers = [*everyone[rank:], *everyone[:rank]]
    for size in (0, 1, 5000, 16 * 1024, 16 * 1024 + 1, 65536, 65537, 400_000):
        slots = {peer: bytearray(size) for peer in peers}
        transport.trade(
            TAG,
            b"trade of %d" % size,
            content(rank, 0, size),
            [(peer, memoryview(slot)) for peer, slot in slots.items()],
            deadline=Deadline(deadline_s),
        )
        for peer, slot in slots.items():
            assert slot == content(peer, 0, size), f"{size} bytes from rank {peer} came wrong"
    _unequal_trade(transport, deadline_s)
    meet(transport, deadline_s)


def _unequal_trade(transport: NetTransport, deadline_s: float) -> None:
    """A trade in which rank 0 says something else than all others."""
    rank, everyone = transport.rank, range(transport.world_size)
    own, other = (b"zero", b"others") if rank == 0 else (b"others", b"zero")
    slots = {peer: bytearray(b"untouch!") for peer in everyone}
    pairs = [(peer, memoryview(slot)) for peer, slot in slots.items()]

    def trade() -> None:
        transport.trade(TAG, own, content(rank, 0, 8), pairs, deadline=Deadline(deadline_s))

    wrong = {peer for peer in everyone if (peer == 0) != (rank == 0)}
    if wrong:
        error = raised(MessageMismatch, trade, "a trade of unequal stamps was taken")
        found = {one.peer: one.stamp for one in error.mismatches}
        assert found == dict.fromkeys(wrong, other), f"the mismatches of the trade are {found}"
    else:
        trade()
    for peer, slot in slots.items():
        expected = b"untouch!" if peer in wrong else content(peer, 0, 8)
        assert slot == expected, f"after a trade of unequal stamps the slot of rank {peer} is wrong"


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
        sends = [Outgoing(last, TAG, STAMP, [whole] * repeats + [whole[:rest]])]
    if transport.rank == last:
        receives = [Incoming(0, TAG, STAMP, slot)]
    transport.exchange(sends, receives, deadline=Deadline(deadline_s))
    if transport.rank == last:
        view = memoryview(slot)
        for number in range(repeats):
            part = view[number * len(whole) : (number + 1) * len(whole)]
            assert part == whole, f"byte {number * len(whole)} or one after it came wrong"
        assert view[repeats * len(whole) :] == whole[:rest], "the end came wrong"
