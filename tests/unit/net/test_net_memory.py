"""What is the memory form's own: copies and references, withdrawal, and its way to die.

The laws that it shares with the other forms are run in tests/ranked.
"""

from __future__ import annotations

import contextlib
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError, UsageError
from rlx.net import Deadline, Incoming, MemoryTransport, MessageMismatch, Outgoing, memory_world
from rlx.net.crossovers import COPY_BYTES

TAG = 5
LARGE = COPY_BYTES + 1
PATIENCE_S = 10.0


def send(transport, peer, *buffers, tag=TAG, stamp=b"s", seconds=PATIENCE_S):
    transport.exchange([Outgoing(peer, tag, stamp, buffers)], (), deadline=Deadline(seconds))


def receive(transport, peer, size, *, tag=TAG, stamp=b"s", seconds=PATIENCE_S):
    slot = bytearray(size)
    transport.exchange((), [Incoming(peer, tag, stamp, slot)], deadline=Deadline(seconds))
    return slot


@pytest.fixture
def beside():
    """Runs a call in a thread of its own; returns its future."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def error_of(future):
    return future.exception(PATIENCE_S)


def test_a_message_of_up_to_64_kib_is_copied_when_it_is_sent():
    here, there = MemoryTransport.mesh(2)
    data = bytearray(b"a" * COPY_BYTES)
    send(here, 1, data, seconds=0)
    data[:] = b"b" * COPY_BYTES
    assert receive(there, 0, COPY_BYTES) == b"a" * COPY_BYTES


def test_a_larger_message_is_waited_for_until_its_receiver_has_read_it(beside):
    here, there = MemoryTransport.mesh(2)
    sending = beside(send, here, 1, b"a" * LARGE)
    time.sleep(0.1)
    assert not sending.done()
    assert receive(there, 0, LARGE) == b"a" * LARGE
    sending.result(PATIENCE_S)


def test_a_large_message_is_copied_once_and_straight_into_its_slot(beside):
    here, there = MemoryTransport.mesh(2)
    halves, slot = (b"a" * (8 << 20), b"b" * (8 << 20)), bytearray(16 << 20)
    tracemalloc.start()
    try:
        sending = beside(send, here, 1, *halves)
        deadline = Deadline(PATIENCE_S)
        there.exchange((), [Incoming(0, TAG, b"s", slot)], deadline=deadline)
        sending.result(PATIENCE_S)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert slot == b"".join(halves)
    assert peak_bytes < 1 << 20


def test_the_buffers_of_one_message_arrive_one_after_the_other(beside):
    here, there = MemoryTransport.mesh(2)
    for size in (1, LARGE):
        sending = beside(send, here, 1, b"a" * size, b"", memoryview(b"b" * size), bytearray(b"c"))
        assert receive(there, 0, 2 * size + 1) == b"a" * size + b"b" * size + b"c"
        sending.result(PATIENCE_S)


def test_a_message_that_timed_out_is_taken_back(beside):
    here, there = MemoryTransport.mesh(2)
    with pytest.raises(DeadlineExceeded, match=r"rank 0 waited .* a receive under tag 5 of rank 1"):
        send(here, 1, b"old" * LARGE, seconds=0.05)
    with pytest.raises(DeadlineExceeded):
        receive(there, 0, 3 * LARGE, seconds=0.05)
    sending = beside(send, here, 1, b"new" * LARGE)
    assert receive(there, 0, 3 * LARGE) == b"new" * LARGE
    sending.result(PATIENCE_S)


def test_only_what_was_not_taken_is_taken_back():
    """The counter-test of the one above: a message that was copied stays sent."""
    here, there = MemoryTransport.mesh(2)
    messages = [Outgoing(1, TAG, b"s", (b"small",)), Outgoing(1, TAG, b"s", (b"x" * LARGE,))]
    with pytest.raises(DeadlineExceeded):
        here.exchange(messages, (), deadline=Deadline(0.05))
    assert receive(there, 0, 5) == b"small"
    with pytest.raises(DeadlineExceeded):
        receive(there, 0, LARGE, seconds=0.05)


def test_a_sender_whose_time_is_up_waits_for_the_copy_that_has_begun(beside, monkeypatch):
    begun, finish = threading.Event(), threading.Event()
    copy_to = memory_world.Message.copy_to

    def slow_copy(message, target):
        begun.set()
        assert finish.wait(PATIENCE_S)
        copy_to(message, target)

    monkeypatch.setattr(memory_world.Message, "copy_to", slow_copy)
    here, there = MemoryTransport.mesh(2)
    data = bytearray(b"a" * LARGE)
    receiving = beside(receive, there, 0, LARGE)
    sending = beside(send, here, 1, data, seconds=0.05)
    assert begun.wait(PATIENCE_S)
    time.sleep(0.2)
    assert not sending.done()
    finish.set()
    assert isinstance(error_of(sending), DeadlineExceeded)
    data[:] = b"b" * LARGE
    assert receiving.result(PATIENCE_S) == b"a" * LARGE


def test_a_copy_that_is_cut_short_does_not_keep_its_sender(beside, monkeypatch):
    def interrupted_copy(message, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_world.Message, "copy_to", interrupted_copy)
    here, there = MemoryTransport.mesh(2)
    sending = beside(send, here, 1, b"a" * LARGE)
    with pytest.raises(KeyboardInterrupt):
        receive(there, 0, LARGE)
    sending.result(PATIENCE_S)


def test_a_kept_error_does_not_keep_the_callers_buffers():
    here, _ = MemoryTransport.mesh(2)
    data, slot = bytearray(LARGE), bytearray(8)
    with pytest.raises(DeadlineExceeded) as kept:
        here.exchange(
            [Outgoing(1, TAG, b"s", (data,))],
            [Incoming(1, TAG, b"s", slot)],
            deadline=Deadline(0.05),
        )
    data.clear()
    slot.clear()  # a BufferError, had the transport a view on it still
    assert kept.value.peers == (1,)


def test_a_large_message_that_nobody_expected_lets_its_sender_go(beside):
    here, there = MemoryTransport.mesh(2)
    slot = bytearray(b"untouched")
    sends = [Outgoing(1, TAG, b"other", (b"x" * LARGE,)), Outgoing(1, TAG + 1, b"s", (b"good",))]
    sending = beside(here.exchange, sends, (), deadline=Deadline(PATIENCE_S))
    good = bytearray(4)
    with pytest.raises(MessageMismatch, match=r"stamped b'other' under tag 5") as caught:
        there.exchange(
            (),
            [Incoming(0, TAG, b"s", slot), Incoming(0, TAG + 1, b"s", good)],
            deadline=Deadline(PATIENCE_S),
        )
    sending.result(PATIENCE_S)
    (mismatch,) = caught.value.mismatches
    assert (mismatch.bytes, mismatch.expected_bytes) == (LARGE, 9)
    assert (slot, good) == (b"untouched", b"good")


def test_a_rank_that_vanishes_is_named_to_those_that_wait_for_others(beside):
    mesh = MemoryTransport.mesh(4)
    waits = [beside(receive, mesh[0], 1, 1), beside(receive, mesh[1], 3, 1)]
    sending = beside(send, mesh[3], 0, b"x" * LARGE)
    time.sleep(0.05)
    mesh[2].vanish()
    for future in (*waits, sending):
        error = error_of(future)
        assert isinstance(error, PeerLost)
        assert (error.rank, str(error)) == (2, "rank 2 died")
    with pytest.raises(ClosedError):
        send(mesh[2], 0, b"x")


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda mesh: mesh[1].vanish(), PeerLost),
        (lambda mesh: mesh[1].close(), PeerLost),
        (lambda mesh: mesh[1].abort("enough"), RemoteError),
        (lambda mesh: mesh[0].close(), ClosedError),
    ],
    ids=["vanish", "close", "abort", "close-oneself"],
)
def test_a_rank_that_waits_is_woken_at_once(beside, end, kind):
    mesh = MemoryTransport.mesh(2)
    receiving = beside(receive, mesh[0], 1, 1)
    time.sleep(0.05)
    begun = time.monotonic()
    end(mesh)
    assert isinstance(error_of(receiving), kind)
    assert time.monotonic() - begun < PATIENCE_S / 2


@pytest.mark.parametrize("reason", [PeerLost(2, "gone"), RemoteError(2, "ValueError", "bad lr")])
def test_an_abort_that_passes_a_failure_on_leaves_its_rank_blamed(reason):
    mesh = MemoryTransport.mesh(3)
    mesh[0].abort(reason)
    with pytest.raises(type(reason)) as caught:
        receive(mesh[1], 0, 1)
    assert caught.value.rank == 2


def test_an_abort_with_a_reason_of_its_own_is_blamed_on_its_rank():
    """The counter-test of the one above."""
    mesh = MemoryTransport.mesh(3)
    mesh[0].abort(ValueError("bad lr"))
    mesh[1].abort(ValueError("a second one"))
    with pytest.raises(RemoteError, match="rank 0 failed: ValueError: bad lr"):
        receive(mesh[2], 1, 1)


def test_what_a_rank_sent_before_it_left_is_delivered_and_then_its_leave_is_named():
    here, there = MemoryTransport.mesh(2)
    send(there, 0, b"last")
    there.close()
    assert receive(here, 1, 4) == b"last"
    with pytest.raises(PeerLost) as caught:
        receive(here, 1, 4, stamp=b"gradients")
    assert caught.value.rank == 1
    assert str(caught.value) == (
        "rank 1 left (closed its transport) while 'gradients' was expected of it by rank 0"
    )


def test_a_rank_that_has_left_takes_no_large_message():
    here, there = MemoryTransport.mesh(2)
    there.close()
    with pytest.raises(PeerLost, match="a receive under tag 5 was expected of it"):
        send(here, 1, b"x" * LARGE)
    there.vanish()  # it has left: it cannot die as well
    with pytest.raises(PeerLost, match="left"):
        receive(here, 1, 1)


def test_a_wait_with_the_longest_of_deadlines_ends_when_its_message_comes(beside):
    here, there = MemoryTransport.mesh(2)
    receiving = beside(receive, there, 0, 2, seconds=1e300)
    time.sleep(0.05)
    send(here, 1, b"ok")
    assert receiving.result(PATIENCE_S) == b"ok"


def test_what_has_come_is_taken_without_a_wait():
    here, there = MemoryTransport.mesh(2)
    with pytest.raises(DeadlineExceeded):
        receive(there, 0, 2, seconds=0)
    send(here, 1, b"ok")
    assert receive(there, 0, 2, seconds=0) == b"ok"


def test_a_wait_costs_no_processor_time():
    here, _ = MemoryTransport.mesh(2)
    begun = time.thread_time()
    with pytest.raises(DeadlineExceeded):
        receive(here, 1, 1, seconds=0.5)
    assert time.thread_time() - begun < 0.05


def test_a_slot_that_cannot_be_filled_is_refused_before_anything_moves():
    here, there = MemoryTransport.mesh(2)
    every_second_byte = memoryview(bytearray(8))[::2]
    with pytest.raises(UsageError, match=r"the slot for rank 0, tag .* is not C-contiguous"):
        there.exchange(
            [Outgoing(0, TAG, b"s", (b"x",))],
            [Incoming(0, TAG, b"s", every_second_byte)],
            deadline=Deadline(0),
        )
    with pytest.raises(DeadlineExceeded):
        receive(here, 1, 1, seconds=0)


def test_a_message_to_nobody_is_refused_and_nothing_is_sent():
    here, there = MemoryTransport.mesh(2)
    with pytest.raises(UsageError, match="there is no peer 2 in a world of 2"):
        here.exchange(
            [Outgoing(1, TAG, b"s", (b"x",)), Outgoing(2, TAG, b"s", (b"x",))],
            (),
            deadline=Deadline(0),
        )
    with pytest.raises(DeadlineExceeded):
        receive(there, 0, 1, seconds=0)


def test_a_world_without_ranks_is_refused():
    with pytest.raises(UsageError, match="at least one rank; got 0"):
        MemoryTransport.mesh(0)


def test_large_messages_that_race_with_their_deadlines_come_whole_in_order_or_not_at_all(beside):
    here, there = MemoryTransport.mesh(2)
    deadlines_s = [0, 2e-5, 5e-5, 1e-4, PATIENCE_S] * 30
    arrived: list[int] = []

    def take_all():
        while (slot := receive(there, 0, LARGE))[0] != 255:
            assert slot == bytes([slot[0]]) * LARGE
            arrived.append(slot[0])

    taking = beside(take_all)
    sent = []
    for number, seconds in enumerate(deadlines_s):
        with contextlib.suppress(DeadlineExceeded):
            send(here, 1, bytes([number]) * LARGE, seconds=seconds)
            sent.append(number)
    send(here, 1, b"\xff" * LARGE)
    taking.result(PATIENCE_S)
    assert arrived == sorted(set(arrived))
    assert set(sent) <= set(arrived)
    assert 30 <= len(sent) < len(deadlines_s)
