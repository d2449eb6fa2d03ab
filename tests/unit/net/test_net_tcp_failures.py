"""Deaths, frozen peers, aborts and departures: who is blamed, how soon, and what is left open."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time

import pytest
from net_tcp_kit import (
    in_threads,
    on_all,
    open_descriptors,
    our_threads,
    raw_peer,
    receive,
    send,
    tcp_mesh,
    with_children,
)

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError
from rlx.net import control as control_module
from rlx.net import driver as driver_module
from rlx.net.control import _GOODBYE, _HEARTBEAT, _NOTICE, pack
from rlx.net.notices import MAX_NOTICE_BYTES, Notice

pytestmark = pytest.mark.usefixtures("shared_memory")

SLEEP = "say('asleep'); time.sleep(60)"


def timed(body):
    started = time.monotonic()
    return body(), time.monotonic() - started


def error_of(body):
    try:
        return body()
    except Exception as error:
        return error


def test_a_killed_process_is_named_by_all_ranks_even_those_that_wait_for_others():
    with with_children(3, {2: SLEEP}) as (here, children):
        children[2].wait_for("asleep")
        killing = threading.Timer(0.2, children[2].process.kill)
        killing.start()

        def waits_for(rank, peer):
            return timed(lambda: error_of(lambda: receive(here[rank], peer, 1, 1)))

        outcome = in_threads([lambda: waits_for(0, 1), lambda: waits_for(1, 2)])
        for error, seconds in outcome:
            assert isinstance(error, PeerLost), error
            assert error.rank == 2
            assert "rank 2 died" in str(error)
            assert seconds < 2
        killing.join()
        with pytest.raises(PeerLost, match="rank 2"):
            send(here[0], 1, 1, b"x")


def test_a_process_killed_in_the_middle_of_a_message_is_named():
    size = 200_000_000  # Far more than the kernels hold, so that it cannot be all out.
    body = f"say('sending'); send(0, 1, bytes({size})); say('sent')"
    with with_children(2, {1: body}) as (here, children):
        children[1].wait_for("sending")
        time.sleep(0.2)
        children[1].process.kill()
        with pytest.raises(PeerLost) as caught:
            receive(here[0], 1, 1, size)
        assert caught.value.rank == 1
        assert "sent" not in children[1].output().split()


def test_a_frozen_process_is_lost_after_the_heartbeat_time_and_a_busy_one_is_not():
    busy = "say('asleep'); time.sleep(2.5); send(0, 1, b'x'); time.sleep(30)"
    with with_children(3, {1: busy, 2: SLEEP}, heartbeat_s=1.0) as (here, children):
        children[1].wait_for("asleep")
        children[2].wait_for("asleep")
        assert receive(here[0], 1, 1, 1) == b"x"
        os.kill(children[2].process.pid, signal.SIGSTOP)
        error, seconds = timed(lambda: error_of(lambda: receive(here[0], 1, 1, 1)))
        assert isinstance(error, PeerLost), error
        assert error.rank == 2
        assert "no heartbeat for 1 s" in str(error)
        assert 0.5 < seconds < 3


@pytest.mark.parametrize("first_word_s", [0.3, 30.0])
def test_a_peer_that_never_sent_a_heartbeat_is_lost_too_after_a_longer_time(
    monkeypatch, first_word_s
):
    """With its counter-test: by then it may still be joining."""
    monkeypatch.setattr(control_module, "FIRST_WORD_S", first_word_s)
    with raw_peer(heartbeat_s=0.2) as (first, _):
        error = error_of(lambda: receive(first, 1, 1, 1, seconds=1.2))
        if first_word_s < 1:
            assert isinstance(error, PeerLost), error
            assert "rank 1 sent no heartbeat for 0.5 s" in str(error)
        else:
            assert isinstance(error, DeadlineExceeded), error


def test_a_rank_that_was_frozen_itself_blames_nobody_for_that_time():
    body = "say('asleep'); say(receive(0, 1, 1)); time.sleep(0.5); say(receive(0, 1, 1))"
    # This side would judge after 4 s; the child after 1 s, of which it was itself away for 2.
    with with_children(2, {1: body}, heartbeat_s=4.0, childrens_heartbeat_s=1.0) as (
        here,
        children,
    ):
        children[1].wait_for("asleep")
        os.kill(children[1].process.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(children[1].process.pid, signal.SIGCONT)
        send(here[0], 1, 1, b"x")
        send(here[0], 1, 1, b"y")
        assert children[1].output().split() == ["bytearray(b'x')", "bytearray(b'y')"]


def test_an_abort_tells_the_others_kind_message_and_traceback():
    def body(transport):
        if transport.rank == 1:
            time.sleep(0.1)
            try:
                raise ValueError("bad lr")
            except ValueError as error:
                transport.abort(error)
            return error_of(lambda: send(transport, 0, 1, b"x"))
        return error_of(lambda: receive(transport, 2 - transport.rank, 1, 1))

    with tcp_mesh(3) as mesh:
        first, aborted, third = on_all(mesh, body)
        for error in (first, third):
            assert isinstance(error, RemoteError), error
            assert (error.rank, error.kind, error.message) == (1, "ValueError", "bad lr")
            assert 'raise ValueError("bad lr")' in error.traceback
        assert isinstance(aborted, ClosedError)
        assert "bad lr" in str(aborted)
        again = error_of(lambda: send(mesh[0], 2, 1, b"x"))
        assert isinstance(again, RemoteError)
        assert again is not first


def test_an_abort_with_a_text_is_of_kind_abort():
    with tcp_mesh(2) as (first, second):
        first.abort("the disk is full")
        error = error_of(lambda: receive(second, 0, 1, 1))
        assert isinstance(error, RemoteError)
        assert (error.rank, error.kind, error.message) == (0, "Abort", "the disk is full")


def test_a_failure_that_is_passed_on_keeps_the_rank_that_failed_first():
    with tcp_mesh(4) as mesh:

        def body(transport):
            if transport.rank == 3:
                transport.abort("stop")
                return None
            error = error_of(lambda: receive(transport, (transport.rank + 1) % 4, 1, 1))
            transport.abort(error)
            return error

        errors = on_all(mesh, body)[:3]
        assert [(type(e), e.rank, e.message) for e in errors] == [(RemoteError, 3, "stop")] * 3


def test_a_loss_that_is_passed_on_stays_a_loss():
    with tcp_mesh(3) as mesh:
        mesh[1].abort(PeerLost(2, "rank 2 died: its connection ended without a goodbye"))
        error = error_of(lambda: receive(mesh[0], 1, 1, 1))
        assert isinstance(error, PeerLost)
        assert error.rank == 2


def test_a_transport_that_is_closed_after_a_failure_passes_it_on():
    with tcp_mesh(3) as mesh:
        # Rank 1 alone has been told, so that rank 0 can know it from nobody else.
        mesh[1]._engine.fail(Notice(2, False, "Abort", "stop"))
        assert isinstance(error_of(lambda: receive(mesh[1], 0, 1, 1)), RemoteError)
        mesh[1].close()
        error = error_of(lambda: receive(mesh[0], 1, 1, 1))
        assert isinstance(error, RemoteError), error
        assert (error.rank, error.message) == (2, "stop")


def test_what_was_sent_before_a_close_still_arrives_whole():
    content = os.urandom(20_000_000)
    with tcp_mesh(2) as (first, second):

        def leave():
            send(first, 1, 1, content)
            send(first, 1, 2, b"last")
            first.close()

        _, came = in_threads([leave, lambda: (time.sleep(0.2), receive(second, 0, 1, 20_000_000))])
        assert came[1] == content
        assert receive(second, 0, 2, 4) == b"last"


def test_what_lies_unread_here_does_not_cut_off_what_was_sent_before_a_close():
    content = os.urandom(1_000_000)  # More than the peer's kernel takes while nobody reads there.
    with tcp_mesh(2) as (first, second):
        send(second, 0, 9, b"never read")
        send(first, 1, 1, content)
        closing = threading.Thread(target=first.close)
        closing.start()
        time.sleep(0.3)
        assert receive(second, 0, 1, len(content)) == content
        closing.join()


def test_a_peer_that_left_fails_only_the_waits_that_expect_something_of_it():
    with tcp_mesh(3) as mesh:
        mesh[1].close()
        waiting = [
            lambda: error_of(lambda: receive(mesh[0], 1, 1, 1)),
            lambda: (time.sleep(0.2), send(mesh[2], 0, 2, b"x"))[1],
            lambda: receive(mesh[0], 2, 2, 1),
        ]
        error, _, came = in_threads(waiting)
        assert isinstance(error, PeerLost), error
        assert error.rank == 1
        assert (
            "rank 1 left (closed its transport) while a message (tag 1, 'test') was expected"
            in (str(error))
        )
        assert came == b"x"
        error = error_of(lambda: send(mesh[0], 1, 1, b"x"))
        assert isinstance(error, PeerLost)
        send(mesh[0], 2, 3, b"on")
        assert receive(mesh[2], 0, 3, 2) == b"on"


def test_a_data_connection_that_ends_waits_for_the_control_connections_verdict():
    with raw_peer() as (first, peer):
        peer.data[0].close()
        notice = Notice(1, False, "ValueError", "bad lr")
        later = threading.Timer(0.3, peer.control[0].sendall, (pack(_NOTICE, notice.encode()),))
        later.start()
        error, seconds = timed(lambda: error_of(lambda: receive(first, 1, 1, 1)))
        assert isinstance(error, RemoteError), error
        assert error.message == "bad lr"
        assert 0.2 < seconds < 2
        later.join()


def test_a_data_connection_that_ends_without_a_verdict_is_a_death(monkeypatch):
    monkeypatch.setattr(driver_module, "VERDICT_S", 0.3)
    with raw_peer() as (first, peer):
        reset = struct.pack("ii", 1, 0)
        peer.data[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        peer.data[0].close()
        error, seconds = timed(lambda: error_of(lambda: receive(first, 1, 1, 1)))
        assert isinstance(error, PeerLost), error
        assert error.rank == 1
        assert 0.25 < seconds < 2


def test_a_goodbye_on_control_explains_the_end_of_the_data():
    with raw_peer() as (first, peer):
        peer.control[0].sendall(pack(_GOODBYE))
        peer.data[0].close()
        error, seconds = timed(lambda: error_of(lambda: receive(first, 1, 1, 1)))
        assert isinstance(error, PeerLost), error
        assert "left" in str(error)
        assert seconds < 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n",
        struct.pack("<2sBBI", b"rc", 1, _NOTICE, MAX_NOTICE_BYTES + 1),
        struct.pack("<2sBBI", b"rc", 1, _HEARTBEAT, 0xFFFFFFFF),
        struct.pack("<2sBBI", b"rc", 1, 99, 0),
        struct.pack("<2sBBI", b"rc", 9, _HEARTBEAT, 0),
        pack(_NOTICE, Notice(7, True, "PeerLost", "no such rank").encode()),
    ],
)
def test_garbage_on_a_control_connection_is_the_fault_of_its_peer(garbage):
    with raw_peer() as (first, peer):
        peer.control[0].sendall(pack(_HEARTBEAT) + garbage)
        error = error_of(lambda: receive(first, 1, 1, 1, seconds=5))
        assert isinstance(error, PeerLost), error
        assert error.rank == 1


def test_close_wakes_the_threads_that_wait():
    with tcp_mesh(2) as (first, _):

        def waiter():
            return timed(lambda: error_of(lambda: receive(first, 1, 1, 1)))

        outcome = in_threads([waiter, waiter, lambda: (time.sleep(0.2), first.close())])
        for error, seconds in outcome[:2]:
            assert isinstance(error, ClosedError), error
            assert seconds < 2
        with pytest.raises(ClosedError):
            send(first, 0, 1, b"x")
        first.close()
        first.abort("too late to matter")


@pytest.mark.parametrize("how", ["close", "abort", "die"])
def test_nothing_is_left_open_however_it_ends(how):
    before, threads = open_descriptors(), our_threads()
    with tcp_mesh(3) as mesh:
        receive_all = [
            lambda t=t: error_of(lambda: receive(t, (t.rank + 1) % 3, 1, 1, seconds=0.3))
            for t in mesh
        ]
        if how == "die":
            mesh[2]._engine._links[0].socket.shutdown(socket.SHUT_RDWR)
        in_threads(receive_all)
        if how == "abort":
            mesh[0].abort("stop")
    assert our_threads() == threads
    assert open_descriptors() == before


def test_a_rank_that_waits_uses_no_processor():
    with tcp_mesh(2) as (first, second):
        send(second, 0, 5, b"unexpected")
        used = time.process_time()
        with pytest.raises(DeadlineExceeded):
            receive(first, 1, 1, 1, seconds=1.0)
        assert time.process_time() - used < 0.3
