"""A peer that has proved itself, and then sends what no rank sends: the data and control streams.

It can end the job, as any rank can. It cannot write outside a buffer, nor have memory allocated for
what it only announces, and the error names it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from attack_kit import closed_by_peer, proven_peers, until

from rlx.errors import (
    DeadlineExceeded,
    LimitExceeded,
    Malformed,
    PeerLost,
    RemoteError,
    UnknownVersion,
    WireError,
)
from rlx.net.control import pack
from rlx.net.deadline import Deadline
from rlx.net.frames import GOODBYE, HEADER, MESSAGE, Limits, pack_message_header
from rlx.net.notices import MAX_NOTICE_BYTES, Notice
from rlx.net.tcp import TcpTransport
from rlx.net.transport import MAX_STAMP_BYTES, MAX_TAG, Incoming, MessageMismatch, Outgoing

TAG = 5
STAMP = b"expected"
SIZE = 64
GUARD = bytes(range(1, 200))
HEARTBEAT, NOTICE, LEAVING = 1, 2, 3
PEAK_BYTES = 2 << 20


def frame(
    size: int = 0,
    tag: int = TAG,
    stamp: int = 0,
    kind: int = MESSAGE,
    version: int = 1,
    magic: bytes = b"rx",
) -> bytes:
    return struct.pack("<2sBBHHQ", magic, version, kind, tag, stamp, size)


BAD_FRAMES = {
    "length 2^64 - 8": (frame((1 << 64) - 8), LimitExceeded),
    "length 2^63": (frame(1 << 63), LimitExceeded),
    "length -1": (frame((1 << 64) - 1), LimitExceeded),
    "length over the limit": (frame(Limits.frame_bytes + 1), LimitExceeded),
    "stamp over the limit": (frame(SIZE, stamp=MAX_STAMP_BYTES + 1), LimitExceeded),
    "stamp of 65535": (frame(SIZE, stamp=65535), LimitExceeded),
    "tag over the limit": (frame(SIZE, tag=MAX_TAG + 1), LimitExceeded),
    "tag 65535": (frame(SIZE, tag=65535), LimitExceeded),
    "kind 0": (frame(SIZE, kind=0), Malformed),
    "kind 3": (frame(SIZE, kind=3), Malformed),
    "kind 255": (frame(SIZE, kind=255), Malformed),
    "version 0": (frame(SIZE, version=0), UnknownVersion),
    "version 2": (frame(SIZE, version=2), UnknownVersion),
    "magic": (frame(SIZE, magic=b"rc"), Malformed),
    "goodbye with content": (frame(1, tag=0, kind=GOODBYE), Malformed),
    "goodbye with a tag": (frame(0, tag=1, kind=GOODBYE), Malformed),
    "goodbye with a stamp": (frame(0, tag=0, stamp=1, kind=GOODBYE), Malformed),
    "a pickle": (b"\x80\x04\x95" + bytes(64), Malformed),
}


class Guarded:
    """A slot in the middle of a buffer whose other bytes are known."""

    def __init__(self, size: int = SIZE) -> None:
        self.whole = bytearray(GUARD + b"\xaa" * size + GUARD)
        self.slot = memoryview(self.whole)[len(GUARD) : len(GUARD) + size]
        self.untouched = bytes(self.whole)

    def expect(self, victim: TcpTransport, seconds: float = 10, peer: int = 1) -> None:
        victim.exchange([], [Incoming(peer, TAG, STAMP, self.slot)], deadline=Deadline(seconds))

    @property
    def guards_hold(self) -> bool:
        return self.whole.startswith(GUARD) and self.whole.endswith(GUARD)


@contextlib.contextmanager
def little_memory(limit_bytes: int = PEAK_BYTES) -> Iterator[None]:
    """What is allocated inside stays below a limit at its highest."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit_bytes


def error_of(body) -> Exception:
    try:
        body()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("early", [False, True], ids=["awaited", "early"])
@pytest.mark.parametrize("what", BAD_FRAMES)
def test_a_frame_that_no_rank_sends_ends_its_link_and_writes_nowhere(what, early):
    sent, kind = BAD_FRAMES[what]
    guarded = Guarded()
    with proven_peers() as (victim, [peer]), little_memory():
        if early:
            peer.data.sendall(sent + b"\xee" * 4096)
        else:
            later = threading.Timer(0.05, peer.data.sendall, (sent + b"\xee" * 4096,))
            later.start()
        error = error_of(lambda: guarded.expect(victim))
        assert type(error) is kind, error
        assert "rank 1 " in str(error)
        assert "the link is closed" in str(error)
        assert closed_by_peer(peer.data)
        assert guarded.whole == guarded.untouched
        again = error_of(lambda: guarded.expect(victim))
        assert type(again) is kind


def test_a_frame_that_a_rank_sends_fills_its_slot_and_no_more():
    guarded = Guarded()
    with proven_peers() as (victim, [peer]):
        peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + b"\xee" * SIZE)
        guarded.expect(victim)
    assert bytes(guarded.slot) == b"\xee" * SIZE
    assert guarded.guards_hold


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1, 100_000])
def test_a_message_of_another_size_is_dropped_and_touches_no_byte(size):
    guarded = Guarded()
    with proven_peers() as (victim, [peer]):
        peer.data.sendall(pack_message_header(TAG, len(STAMP), size) + STAMP + b"\xee" * size)
        peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + b"\xdd" * SIZE)
        error = error_of(lambda: guarded.expect(victim))
        assert isinstance(error, MessageMismatch)
        assert guarded.whole == guarded.untouched
        guarded.expect(victim)
    assert bytes(guarded.slot) == b"\xdd" * SIZE
    assert guarded.guards_hold


def test_a_limit_that_the_user_sets_is_the_limit():
    with proven_peers(frame_limit_bytes=1000) as (victim, [peer]):
        peer.data.sendall(pack_message_header(TAG, 0, 1001))
        error = error_of(lambda: Guarded().expect(victim))
        assert isinstance(error, LimitExceeded)
        assert "1001" in str(error)


def test_the_largest_frame_is_not_allocated_for_before_somebody_wants_it():
    guarded = Guarded()
    with proven_peers(heartbeat_s=60) as (victim, [peer]), little_memory():
        peer.data.sendall(frame(Limits.frame_bytes, tag=9) + b"\xee" * 100_000)
        error = error_of(lambda: guarded.expect(victim, 0.5))
        assert isinstance(error, DeadlineExceeded)
        assert error.peers == (1,)
        assert guarded.whole == guarded.untouched


def test_a_frame_that_never_ends_is_waited_for_until_the_deadline_and_named():
    guarded = Guarded()
    with proven_peers(heartbeat_s=60) as (victim, [peer]):
        peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + b"\xee" * (SIZE - 1))
        error = error_of(lambda: guarded.expect(victim, 0.3))
        assert isinstance(error, DeadlineExceeded)
        assert "rank 1: the rest of a message" in str(error)
        peer.data.sendall(b"\xdd")
        assert closed_by_peer(peer.data)
    assert guarded.whole[len(GUARD) + SIZE - 1] == 0xAA


def flood(sock, payload: bytes) -> threading.Thread:
    """Send in a thread for as long as the other end takes it."""

    def run() -> None:
        with contextlib.suppress(OSError):
            sock.sendall(payload)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_messages_that_nobody_expects_take_no_more_than_the_inbox():
    payload = b"".join(frame(tag=1000 + n % 30_000) for n in range(200_000))
    with (
        proven_peers(3, inbox_limit_bytes=1 << 20, heartbeat_s=60) as (victim, peers),
        little_memory(8 << 20),
    ):
        hostile, honest = peers
        thread = flood(hostile.data, payload)
        assert isinstance(error_of(lambda: Guarded().expect(victim, 0.5)), DeadlineExceeded)
        room = victim._engine._links[1].mailbox._room
        assert (1 << 20) - 1024 < room.used_bytes <= 1 << 20
        honest.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + b"\xee" * SIZE)
        guarded = Guarded()
        guarded.expect(victim, peer=2)
        assert bytes(guarded.slot) == b"\xee" * SIZE
        hostile.close()
        thread.join(20)


def test_what_follows_a_goodbye_is_not_looked_at():
    with proven_peers() as (victim, [peer]), little_memory():
        peer.data.settimeout(0.2)
        peer.data.sendall(frame(tag=0, kind=GOODBYE) + frame((1 << 64) - 1))
        error = error_of(lambda: Guarded().expect(victim))
        assert isinstance(error, PeerLost)
        assert "left" in str(error)


# The control stream

BAD_CONTROL = {
    "notice over the limit": struct.pack("<2sBBI", b"rc", 1, NOTICE, MAX_NOTICE_BYTES + 1),
    "notice of 4 GiB": struct.pack("<2sBBI", b"rc", 1, NOTICE, 0xFFFFFFFF),
    "heartbeat with content": struct.pack("<2sBBI", b"rc", 1, HEARTBEAT, 1) + b"x",
    "goodbye with content": struct.pack("<2sBBI", b"rc", 1, LEAVING, 0xFFFFFFFF),
    "unknown kind": struct.pack("<2sBBI", b"rc", 1, 77, 0),
    "unknown version": struct.pack("<2sBBI", b"rc", 2, HEARTBEAT, 0),
    "no control message": b"\x80\x04\x95" + bytes(64),
    "notice too short": pack(NOTICE, b"x"),
    "notice of a rank out of range": pack(NOTICE, Notice(9, True, "PeerLost", "x").encode()),
    "notice with lying lengths": pack(NOTICE, struct.pack("<IBxHII", 0, 0, 5, 5, 5) + b"x"),
    "notice with a kind over its limit": pack(
        NOTICE, struct.pack("<IBxHII", 0, 0, 999, 0, 0) + bytes(999)
    ),
}


@pytest.mark.parametrize("what", BAD_CONTROL)
def test_a_control_message_that_no_rank_sends_is_the_fault_of_its_sender(what):
    with proven_peers() as (victim, [peer]), little_memory():
        peer.control.sendall(pack(HEARTBEAT) + BAD_CONTROL[what])
        error = error_of(lambda: Guarded().expect(victim))
        assert isinstance(error, PeerLost), error
        assert error.rank == 1
        assert "rank 1 sent" in str(error)
        assert closed_by_peer(peer.control)


def test_a_notice_that_a_rank_sends_is_believed():
    """It may blame anybody: a peer that holds the token can end the job."""
    with proven_peers(3) as (victim, [peer, _]):
        peer.control.sendall(pack(NOTICE, Notice(2, False, "ValueError", "bad lr").encode()))
        error = error_of(lambda: Guarded().expect(victim))
        assert isinstance(error, RemoteError)
        assert (error.rank, error.message) == (2, "bad lr")


def test_a_flood_of_heartbeats_costs_no_memory_and_stops_no_exchange():
    beats = pack(HEARTBEAT) * 200_000
    guarded = Guarded()
    with proven_peers() as (victim, [peer]):
        thread = flood(peer.control, beats)
        for _ in range(50):
            with little_memory():
                peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + bytes(SIZE))
                guarded.expect(victim)
        thread.join(60)
        assert not thread.is_alive(), "the flood is not read off"
        peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + b"\xee" * SIZE)
        guarded.expect(victim)
    assert bytes(guarded.slot) == b"\xee" * SIZE


def test_a_notice_in_drips_is_a_silence():
    with proven_peers(heartbeat_s=0.5) as (victim, [peer]):
        peer.control.sendall(pack(HEARTBEAT))
        drops = pack(NOTICE, Notice(1, False, "ValueError", "bad lr" * 1000).encode())
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                for at in range(len(drops)):
                    peer.control.sendall(drops[at : at + 1])
                    if stop.wait(0.1):
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        error = error_of(lambda: Guarded().expect(victim, 20))
        stop.set()
        thread.join(20)
        assert isinstance(error, PeerLost)
        assert "no heartbeat" in str(error)


def test_a_peer_that_reads_nothing_costs_one_heartbeat_and_no_more_than_seconds_at_the_end():
    with proven_peers(heartbeat_s=0.005) as (victim, [peer]):
        # The peer's own heartbeats never begin, so that its silence is not judged.
        here = victim._control._peers[0]
        here.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        peer.control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        content = bytes(16 << 20)
        error = error_of(
            lambda: victim.exchange(
                [Outgoing(1, TAG, STAMP, [content])], [], deadline=Deadline(0.5)
            )
        )
        assert isinstance(error, DeadlineExceeded)
        assert error.peers == (1,)
        until(lambda: here.unsent, "the kernel takes no more")
        for _ in range(20):
            assert len(here.unsent) <= len(pack(HEARTBEAT))
            time.sleep(0.005)
        started = time.monotonic()
        victim.close()
        assert time.monotonic() - started < 10


def test_the_errors_of_a_broken_stream_are_wire_errors_of_this_protocol():
    """The counterpart of all the above: a sound stream raises none of them."""
    with proven_peers() as (victim, [peer]):
        peer.control.sendall(pack(HEARTBEAT))
        for _ in range(3):
            peer.data.sendall(pack_message_header(TAG, len(STAMP), SIZE) + STAMP + bytes(SIZE))
            Guarded().expect(victim)
        peer.data.sendall(HEADER.pack(b"rx", 1, GOODBYE, 0, 0, 0))
        peer.control.sendall(pack(LEAVING))
        error = error_of(lambda: Guarded().expect(victim))
        assert not isinstance(error, WireError)
        assert isinstance(error, PeerLost)
