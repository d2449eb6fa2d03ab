"""Exchanges between threads over real connections: order, sizes, tags, mismatches, limits."""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import time

import pytest
from net_tcp_kit import in_threads, on_all, raw_peer, receive, send, tcp_mesh

from rlx.errors import (
    DeadlineExceeded,
    LimitExceeded,
    Malformed,
    TransportError,
    UnknownVersion,
    UsageError,
)
from rlx.net import express
from rlx.net.deadline import Deadline
from rlx.net.frames import HEADER, MAGIC, MESSAGE, VERSION, pack_message_header
from rlx.net.transport import Incoming, MessageMismatch, Outgoing

pytestmark = pytest.mark.usefixtures("shared_memory")


def pattern(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def symmetric(transport, size, *, tag=1, seconds=20.0):
    """Everybody sends to everybody, itself too; what came, by peer."""
    world = range(transport.world_size)
    slots = {peer: bytearray(size) for peer in world}
    transport.exchange(
        [Outgoing(p, tag, b"all", (pattern(size, transport.rank * 100 + p),)) for p in world],
        [Incoming(p, tag, b"all", slots[p]) for p in world],
        deadline=Deadline(seconds),
    )
    return all(slots[p] == pattern(size, p * 100 + transport.rank) for p in world)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 4, 70_000])
def test_everybody_gets_what_everybody_sent(world_size, size):
    with tcp_mesh(world_size) as mesh:
        assert on_all(mesh, lambda t: symmetric(t, size)) == [True] * world_size


def test_messages_far_beyond_the_kernel_buffers_pass_in_both_directions_at_once():
    with tcp_mesh(3) as mesh:
        assert on_all(mesh, lambda t: symmetric(t, 9_000_000)) == [True] * 3


@pytest.mark.parametrize("size", [999, 1000, 1001, 3001, 100_001])
def test_system_calls_that_take_little_change_nothing(size):
    with tcp_mesh(2, call_limit_bytes=1000) as mesh:
        assert on_all(mesh, lambda t: symmetric(t, size)) == [True, True]


def test_a_message_of_many_pieces_is_one_message():
    pieces = [pattern(n, n) for n in (0, 5, 0, 40_000, 1, 7)] + [b"x"] * 3000
    whole = b"".join(pieces)
    with tcp_mesh(2) as (first, second):
        in_threads(
            [
                lambda: first.exchange(
                    [Outgoing(1, 2, b"test", pieces)], (), deadline=Deadline(10)
                ),
            ]
        )
        assert receive(second, 0, 2, len(whole)) == whole


def test_messages_under_one_tag_come_in_order_and_other_tags_do_not_wait():
    with tcp_mesh(2) as (first, second):
        for number in range(50):
            send(first, 1, 5, bytes((number,)))
        send(first, 1, 6, b"!")
        assert receive(second, 0, 6, 1) == b"!"
        assert [receive(second, 0, 5, 1)[0] for _ in range(50)] == list(range(50))


def test_a_message_to_oneself_may_come_before_its_slot_and_be_bigger_than_the_inbox():
    with tcp_mesh(1, inbox_limit_bytes=1000) as (alone,):
        send(alone, 0, 1, b"small")
        assert receive(alone, 0, 1, 5) == b"small"
        big = pattern(5000)
        started = time.monotonic()
        sent, came = in_threads(
            [
                lambda: send(alone, 0, 1, big),
                lambda: (time.sleep(0.1), receive(alone, 0, 1, len(big)))[1],
            ]
        )
        assert time.monotonic() - started < 5, "the sender was not woken when its message was taken"
        assert sent is None
        assert came == big
        with pytest.raises(DeadlineExceeded, match="no slot takes"):
            send(alone, 0, 1, big, seconds=0.05)
        send(alone, 0, 1, b"after")
        assert receive(alone, 0, 1, 5) == b"after"


def test_send_and_receive_need_no_size_beforehand_and_honour_a_limit():
    with tcp_mesh(2) as (first, second):
        first.send(1, 9, b"hello", deadline=Deadline(5))
        assert second.receive(0, 9, limit_bytes=5, deadline=Deadline(5)) == b"hello"
        first.send(1, 9, b"hello", deadline=Deadline(5))
        with pytest.raises(LimitExceeded, match="5 bytes"):
            second.receive(0, 9, limit_bytes=4, deadline=Deadline(5))


@pytest.mark.parametrize("early", [True, False])
def test_another_stamp_or_size_is_told_when_everything_else_is_done(early):
    slots = [bytearray(b"....") for _ in range(3)]
    expected = [
        Incoming(0, 1, b"sum", slots[0]),
        Incoming(0, 2, b"sum", slots[1]),
        Incoming(0, 3, b"sum", slots[2]),
    ]
    sent = [
        Outgoing(1, 1, b"max", (b"abcd",)),
        Outgoing(1, 2, b"sum", (b"abcde" * 30_000,)),
        Outgoing(1, 3, b"sum", (b"good",)),
    ]
    with tcp_mesh(2) as (first, second):

        def sender():
            time.sleep(0.0 if early else 0.1)
            first.exchange(sent, (), deadline=Deadline(10))

        def receiver():
            time.sleep(0.1 if early else 0.0)
            second.exchange((), expected, deadline=Deadline(10))

        _, error = in_threads([sender, receiver])
        assert isinstance(error, MessageMismatch)
        assert {(m.tag, m.stamp, m.bytes) for m in error.mismatches} == {
            (1, b"max", 4),
            (2, b"sum", 150_000),
        }
        assert slots == [b"....", b"....", b"good"]
        send(first, 1, 1, b"on!")
        assert receive(second, 0, 1, 3) == b"on!"


def test_a_mismatch_with_oneself_is_told_too():
    with tcp_mesh(1) as (alone,):
        slot = bytearray(2)
        with pytest.raises(MessageMismatch, match="rank 0 sent 3 bytes"):
            alone.exchange(
                [Outgoing(0, 1, b"test", (b"abc",))],
                [Incoming(0, 1, b"test", slot)],
                deadline=Deadline(5),
            )
        assert slot == b"\0\0"


def test_threads_use_one_transport_at_once_on_tags_of_their_own():
    rounds, tags = 60, 6

    def rank(transport):
        def user(tag):
            for number in range(rounds):
                out = struct.pack("<HH", tag, number) * (1 + 997 * (number % 40))
                slot = bytearray(len(out))
                transport.exchange(
                    [Outgoing(1 - transport.rank, tag, b"test", (out,))],
                    [Incoming(1 - transport.rank, tag, b"test", slot)],
                    deadline=Deadline(20),
                )
                assert slot == out
            return rounds

        return in_threads([lambda t=tag: user(t) for tag in range(tags)])

    with tcp_mesh(2) as mesh:
        assert on_all(mesh, rank) == [[rounds] * tags] * 2


def test_a_thread_whose_driver_leaves_takes_over():
    with tcp_mesh(2) as (first, second):
        late = threading.Thread(target=lambda: (time.sleep(0.4), send(second, 0, 2, b"b")))
        late.start()

        def short():
            with pytest.raises(DeadlineExceeded):
                receive(first, 1, 1, 1, seconds=0.2)

        outcome = in_threads([short, lambda: (time.sleep(0.05), receive(first, 1, 2, 1))[1]])
        late.join()
        assert outcome == [None, b"b"]


def test_a_full_inbox_pauses_the_peer_until_its_slot_is_posted():
    big = pattern(600_000)
    with tcp_mesh(2, inbox_limit_bytes=100_000) as (first, second):
        small = [send(first, 1, 1, b"s") for _ in range(3)]
        sender = threading.Thread(target=send, args=(first, 1, 2, big))
        sender.start()
        with pytest.raises(DeadlineExceeded):
            receive(second, 0, 3, 1, seconds=0.2)
        assert not second._engine._links[0].reads
        assert [receive(second, 0, 1, 1) for _ in small] == [b"s"] * 3
        assert receive(second, 0, 2, len(big)) == big
        sender.join()
        room = second._engine._links[0].mailbox._room
        assert room.used_bytes == 0


def test_a_slot_takes_over_a_message_that_is_half_in_the_inbox():
    content = pattern(300_000)
    with raw_peer() as (first, peer):
        raw = peer.data[0]
        frame = pack_message_header(4, 4, len(content)) + b"test" + content
        raw.sendall(frame[:100_000])
        with pytest.raises(DeadlineExceeded):
            receive(first, 1, 9, 1, seconds=0.1)
        rest = threading.Timer(0.1, raw.sendall, (frame[100_000:],))
        rest.start()
        assert receive(first, 1, 4, len(content)) == content
        rest.join()


def test_a_deadline_names_who_waited_how_long_for_whom_and_what():
    with tcp_mesh(3) as mesh:
        send(mesh[2], 0, 7, b"x")
        slots = [Incoming(p, 7, b"barrier \xff 4", bytearray(1)) for p in (1, 2)]
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            mesh[0].exchange((), slots[:1], deadline=Deadline(0.3))
        assert 0.3 <= time.monotonic() - started < 1.5
        assert caught.value.peers == (1,)
        for words in ("rank 0 waited 0.", "rank 1", "tag 7", "'barrier \ufffd 4'"):
            assert words in str(caught.value)
        assert "rank 2" not in str(caught.value)


def test_a_slot_withdrawn_at_its_deadline_is_not_written_afterwards():
    with tcp_mesh(2) as (first, second):
        slot = bytearray(b"untouched")
        with pytest.raises(DeadlineExceeded):
            first.exchange((), [Incoming(1, 1, b"test", slot)], deadline=Deadline(0))
        send(second, 0, 1, b"different")
        assert receive(first, 1, 1, 9) == b"different"
        assert slot == b"untouched"


def test_a_send_that_never_began_is_withdrawn_and_the_link_stays():
    with tcp_mesh(2) as (first, second):
        big = pattern(30_000_000)
        sender = threading.Thread(target=send, args=(first, 1, 1, big))
        sender.start()
        time.sleep(0.1)
        with pytest.raises(DeadlineExceeded, match="being sent"):
            send(first, 1, 2, b"never", seconds=0.05)
        assert receive(second, 0, 1, len(big)) == big
        sender.join()
        send(first, 1, 2, b"later")
        assert receive(second, 0, 2, 5) == b"later"


def test_a_message_cut_in_the_middle_breaks_its_link_and_no_other():
    with tcp_mesh(3) as mesh:
        with pytest.raises(DeadlineExceeded) as caught:
            send(mesh[0], 1, 1, bytes(50_000_000), seconds=0.1)
        assert caught.value.peers == (1,)
        with pytest.raises(TransportError, match="link to rank 1 is broken"):
            send(mesh[0], 1, 2, b"x")
        send(mesh[0], 2, 2, b"x")
        assert receive(mesh[2], 0, 2, 1) == b"x"


def test_a_content_cut_in_the_middle_breaks_its_link_and_is_not_written_afterwards():
    with raw_peer() as (first, peer):
        peer.data[0].sendall(pack_message_header(1, 4, 100_000) + b"test" + b"a" * 70_000)
        slot = bytearray(100_000)
        with pytest.raises(DeadlineExceeded, match="rest of a message"):
            first.exchange((), [Incoming(1, 1, b"test", slot)], deadline=Deadline(0.2))
        with pytest.raises(TransportError, match="broken"):
            receive(first, 1, 2, 1)
        assert slot[69_000] == ord("a")
        assert slot[-1] == 0


def hostile_header(tag=1, stamp_bytes=4, size=8, magic=MAGIC, version=VERSION, kind=MESSAGE):
    return HEADER.pack(magic, version, kind, tag, stamp_bytes, size)


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (hostile_header(size=(1 << 64) - 8), LimitExceeded),
        (hostile_header(size=1 << 63), LimitExceeded),
        (hostile_header(size=(1 << 64) - 1), LimitExceeded),
        (hostile_header(stamp_bytes=65535), LimitExceeded),
        (hostile_header(tag=40000), LimitExceeded),
        (hostile_header(magic=b"GE"), Malformed),
        (hostile_header(kind=77), Malformed),
        (hostile_header(version=2), UnknownVersion),
    ],
)
def test_a_hostile_header_names_the_peer_ends_the_link_and_writes_nothing(header, fault):
    guarded = bytearray(b"G" * 24)
    with raw_peer() as (first, peer):
        peer.data[0].sendall(header + b"test" + b"A" * 64)
        slot = Incoming(1, 1, b"test", memoryview(guarded)[8:16])
        with pytest.raises(fault, match="rank 1"):
            first.exchange((), [slot], deadline=Deadline(5))
        assert guarded == b"G" * 24
        with pytest.raises(fault, match="rank 1"):
            send(first, 1, 1, b"x")
        peer.data[0].settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert peer.data[0].recv(1) == b""


def test_the_same_frame_with_an_honest_length_is_taken():
    guarded = bytearray(b"G" * 24)
    with raw_peer() as (first, peer):
        peer.data[0].sendall(hostile_header(size=8) + b"test" + b"A" * 8)
        slot = Incoming(1, 1, b"test", memoryview(guarded)[8:16])
        first.exchange((), [slot], deadline=Deadline(5))
    assert guarded == b"G" * 8 + b"A" * 8 + b"G" * 8


def test_a_frame_over_the_transports_own_limit_is_refused():
    with raw_peer(frame_limit_bytes=1000) as (first, peer):
        peer.data[0].sendall(hostile_header(size=1001))
        with pytest.raises(LimitExceeded, match=r"1001 bytes .*1000"):
            receive(first, 1, 1, 1001)


def test_what_no_form_can_carry_is_refused_before_anything_is_sent():
    strided = memoryview(bytearray(8))[::2]
    with tcp_mesh(2) as (first, second):
        for message in (
            Outgoing(2, 1, b"", ()),
            Outgoing(1, 40_000, b"", ()),
            Outgoing(1, 1, b"s" * 2000, ()),
            Outgoing(1, 1, b"", (strided,)),
        ):
            with pytest.raises(UsageError):
                first.exchange(
                    [Outgoing(1, 1, b"test", (b"x",)), message], (), deadline=Deadline(1)
                )
        with pytest.raises(DeadlineExceeded):
            receive(second, 0, 1, 1, seconds=0.1)


def test_a_message_that_comes_between_two_looks_goes_to_the_first_slot_that_waits():
    """Two slots for messages of one stamp: the first look finds nothing, the second one both."""

    class Late:
        """A link on which the first message comes after the first look."""

        def __init__(self):
            self.looks = 0
            self.messages = [b"1", b"2"]

        def take_expected(self, head, view):
            self.looks += 1
            if self.looks == 1:
                return None
            view[:] = self.messages.pop(0)
            return True

    link, slots = Late(), [bytearray(1), bytearray(1)]
    wanted = [(link, b"head", memoryview(slot)) for slot in slots]
    assert express.take(wanted, 10, lambda: True) == []
    assert slots == [b"1", b"2"]
