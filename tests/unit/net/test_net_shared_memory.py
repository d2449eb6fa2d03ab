"""Memory between ranks of one host: who shares, what a ring carries, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from net_tcp_kit import (
    in_threads,
    listeners,
    on_all,
    open_descriptors,
    receive,
    tcp_mesh,
    with_children,
)

from rlx.errors import Malformed, PeerLost, UsageError
from rlx.group import ProcessGroup
from rlx.net import Deadline, segment
from rlx.net.ring import LANE_BYTES, RING_BYTES, RingStream
from rlx.net.segment import PAGE_BYTES, Segment
from rlx.net.shared_heap import SharedHeap, Space
from rlx.net.tcp import TcpTransport


def two_ends() -> tuple[RingStream, RingStream]:
    here, there = (memoryview(bytearray(LANE_BYTES)) for _ in range(2))
    sleeps = memoryview(bytearray(8))
    return RingStream(1, here, there, sleeps), RingStream(0, there, here, sleeps)


def drained(ring: RingStream, size: int) -> bytes:
    target = memoryview(bytearray(size))
    return bytes(target[: ring.recv_into(target)])


@given(st.lists(st.integers(0, RING_BYTES + 1000), max_size=12), st.data())
def test_a_ring_gives_back_what_was_written_in_order(sizes, data):
    writer, reader = two_ends()
    sent, received = bytearray(), bytearray()
    for number, size in enumerate(sizes):
        chunk = bytes([number]) * size
        try:
            sent += chunk[: writer.sendmsg([memoryview(chunk)])]
        except BlockingIOError:
            assert not writer.has_room()
        for _ in range(data.draw(st.integers(0, 3))):
            if reader.has_news():
                received += drained(reader, data.draw(st.integers(1, RING_BYTES)))
    while reader.has_news():
        received += drained(reader, RING_BYTES)
    assert received == sent
    with pytest.raises(BlockingIOError):
        drained(reader, 1)


def test_a_message_is_taken_only_if_it_is_the_expected_one_and_all_there():
    writer, reader = two_ends()
    slot = memoryview(bytearray(3))
    assert reader.take(b"head", slot) is None
    assert writer.put(b"head123head45")
    assert reader.take(b"heap", slot) is False
    assert reader.take(b"head", slot) is True
    assert bytes(slot) == b"123"
    assert reader.take(b"head", slot) is False, "half of a message was taken"
    assert drained(reader, 100) == b"head45"


@pytest.mark.parametrize("word", [0, 16])
def test_counters_that_a_peer_spoilt_are_an_error_that_names_it(word):
    lane_in, lane_out = (memoryview(bytearray(LANE_BYTES)) for _ in range(2))
    ring = RingStream(3, lane_in, lane_out, memoryview(bytearray(8)))
    (lane_in if word == 0 else lane_out).cast("Q")[word] = 1 << 63
    with pytest.raises(Malformed, match="rank 3 spoilt the counters"):
        drained(ring, 10) if word == 0 else ring.send(b"x")


def test_a_rank_that_sleeps_is_woken_by_a_byte_on_the_connection():
    here, there = socket.socketpair()
    sleeps = memoryview(bytearray(8))
    lane_in, lane_out = (memoryview(bytearray(LANE_BYTES)) for _ in range(2))
    ring = RingStream(1, lane_in, lane_out, sleeps)
    with here, there:
        there.setblocking(False)
        ring.ring_on(here)
        ring.send(b"awake")
        with pytest.raises(BlockingIOError):
            there.recv(1)
        sleeps.cast("Q")[0] = 1
        ring.send(b"asleep")
        assert there.recv(10) == b"\0"
        assert sleeps.cast("Q")[0] == 0


def memories(mesh: list[TcpTransport]) -> list[frozenset[int]]:
    return [one.heap.near if one.heap is not None else frozenset() for one in mesh]


def test_ranks_of_one_host_share_memory_unless_one_does_not_want_to():
    with tcp_mesh(3) as mesh:
        assert memories(mesh) == [{1, 2}, {0, 2}, {0, 1}]
    with tcp_mesh(3, shared_memory=False) as mesh:
        assert memories(mesh) == [frozenset()] * 3


def mixed_mesh() -> list[TcpTransport]:
    """Three ranks, the last of which is as if it were on another host."""
    doors = listeners(3)
    addresses = [door.getsockname() for door in doors]
    return in_threads(
        [
            lambda r=r: TcpTransport.from_listener(
                r, 3, doors[r], addresses, shared_memory=r < 2, deadline=Deadline(20)
            )
            for r in range(3)
        ]
    )


def test_near_and_far_ranks_take_part_in_one_sum():
    values = [np.random.default_rng(rank).standard_normal(50_000, np.float32) for rank in range(3)]
    expected = ((values[0] + values[1]) + values[2]).tobytes()

    def body(transport):
        group = ProcessGroup(transport, deadline=20)
        array = group.empty(50_000)
        array[:] = values[transport.rank]
        group.all_reduce(array, out=array)
        return array.tobytes() == expected and group.all_gather(array).shape == (3, 50_000)

    mesh = mixed_mesh()
    try:
        assert memories(mesh) == [{1}, {0}, frozenset()]
        assert on_all(mesh, body) == [True] * 3
    finally:
        in_threads([one.close for one in mesh])


def test_sums_of_heap_arrays_borrow_and_others_do_not(monkeypatch):
    borrowed = []
    original = SharedHeap.borrow
    monkeypatch.setattr(
        SharedHeap, "borrow", lambda *args: borrowed.append(args[1]) or original(*args)
    )

    def body(transport, on_heap):
        group = ProcessGroup(transport, deadline=20)
        array = group.empty(9000) if on_heap else np.empty(9000, np.float32)
        group.all_reduce(array, out=array)

    with tcp_mesh(2) as mesh:
        assert on_all(mesh, lambda one: body(one, False)) == [None] * 2
        assert borrowed == []
        assert on_all(mesh, lambda one: body(one, True)) == [None] * 2
        assert sorted(borrowed) == [0, 0, 1, 1]


def test_another_host_is_not_near(monkeypatch):
    own = iter([bytes([number]) * 16 for number in range(100)])
    monkeypatch.setattr(segment, "host_id", lambda: next(own))
    with tcp_mesh(2) as mesh:
        assert memories(mesh) == [frozenset()] * 2
        assert on_all(mesh, lambda one: ProcessGroup(one).barrier()) == [None] * 2


def test_where_the_system_gives_no_memory_the_connections_carry_everything(monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with tcp_mesh(2) as mesh:
        assert memories(mesh) == [frozenset()] * 2
        assert on_all(mesh, lambda one: ProcessGroup(one).barrier()) == [None] * 2


def test_an_offer_that_leads_elsewhere_maps_nothing(tmp_path):
    own = Segment.create(4 * PAGE_BYTES)
    other = os.memfd_create("rlx", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(other, 4 * PAGE_BYTES)
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, 4 * PAGE_BYTES)
    try:
        good = own.offer
        attached = Segment.attach(good)
        assert attached is not None
        attached.close()
        for wrong in (
            {"cookie": bytes(32)},
            {"descriptor": other},  # whoever made it could still make it shorter
            {"descriptor": plain},
            {"descriptor": 1 << 20},
            {"process": 1 << 40},
            {"size_bytes": 5 * PAGE_BYTES},
            {"size_bytes": 0},
            {"host": bytes(16)},
        ):
            assert Segment.attach(dataclasses.replace(good, **wrong)) is None, wrong
    finally:
        own.close()
        os.close(other)
        os.close(plain)


def test_memory_outside_of_the_heap_is_not_borrowed():
    def body(transport):
        heap = transport.heap
        peer = 1 - transport.rank
        location, memory = heap.allocate(100)
        assert heap.lend(memory) == location
        for start, size in ((0, 8), (location, 1 << 60), ((1 << 64) - 8, 8), (-1, 1)):
            with pytest.raises(Malformed):
                heap.borrow(peer, start, size)
        return True

    with tcp_mesh(2) as mesh:
        assert on_all(mesh, body) == [True] * 2


def test_a_heap_without_room_leaves_ordinary_arrays():
    def body(transport):
        group = ProcessGroup(transport, deadline=20)
        array = group.empty(1 << 20)
        assert transport.heap.lend(memoryview(array).cast("B")) is None
        array[:] = 1
        return group.all_reduce(array)[-1] == 2

    with tcp_mesh(2, heap_bytes=1 << 16) as mesh:
        assert on_all(mesh, body) == [True] * 2


@pytest.mark.parametrize("shape", [-1, (2, -3), "wide", 1 << 62])
def test_a_shape_that_is_none_is_refused(shape):
    with tcp_mesh(2) as mesh:
        group = ProcessGroup(mesh[0])
        with pytest.raises(UsageError, match="no array of shape"):
            group.empty(shape)
        group.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60))
def test_space_is_never_given_out_twice_and_comes_back_whole(wishes):
    space = Space(20_000)
    taken: dict[int, int] = {}
    for gives_back, size in wishes:
        if gives_back and taken:
            start = sorted(taken)[size % len(taken)]
            assert space.give_back(start)[0] == start
            del taken[start]
            continue
        start = space.take(size)
        if start is not None:
            assert start % 64 == 0
            assert start + size <= 20_000
            assert all(start + size <= one or one + taken[one] <= start for one in taken)
            taken[start] = size
    for start in taken:
        space.give_back(start)
    assert space.take(20_000 // 64 * 64) == 0


def test_nothing_is_left_open_when_no_array_is_left():
    before = open_descriptors()
    with tcp_mesh(3) as mesh:
        group = ProcessGroup(mesh[0])
        array = group.empty(1000)
        assert array.shape == (1000,)
    del array, group, mesh
    assert open_descriptors() == before


def files_of_rlx() -> set[str]:
    """What lies in /dev/shm but for the segments of an Open MPI that may be running beside this."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sm_segment.")}


def test_a_killed_rank_leaves_no_memory_and_no_file():
    before = files_of_rlx()
    body = """
group_memory = transport.heap.allocate(1 << 20)[1]
group_memory[:] = bytes(1 << 20)
send(0, 5, b"written")
time.sleep(60)
"""
    with with_children(2, {1: body}) as (here, children):
        assert here[0].heap.near == {1}
        assert receive(here[0], 1, 5, 7) == b"written"
        children[1].process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerLost) as lost:
            receive(here[0], 1, 6, 10)
        assert lost.value.rank == 1
    assert files_of_rlx() == before


def test_importing_the_room_maps_nothing():
    code = "import rlx.net.tcp, mmap; print(open('/proc/self/maps').read().count('memfd:rlx'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "0"
