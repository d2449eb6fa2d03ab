"""The MPI transport when something goes wrong: deadlines, aborts, early leaves, deaths."""

from __future__ import annotations

import pytest
from net_mpi_kit import assert_all_ok, has_fault_tolerance, needs_mpirun, run_under_mpi

pytestmark = needs_mpirun

needs_fault_tolerance = pytest.mark.skipif(
    not has_fault_tolerance(),
    reason="this MPI library does not survive the death of a rank",
)


def test_a_wait_ends_at_its_deadline_and_names_the_silent_rank(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm()
        if one.rank == 0:
            slots = [Incoming(1, 7, b"s", bytearray(1)), Incoming(2, 7, b"s", bytearray(b"*"))]
            before = time.monotonic()
            error = raised(DeadlineExceeded,
                           lambda: one.exchange((), slots, deadline=Deadline(0.5)))
            assert 0.5 <= time.monotonic() - before < 1.5
            assert error.peers == (2,), error
        if one.rank == 1:
            send(one, 0, b"x")
        meet(one)
        if one.rank == 2:
            send(one, 0, b"y")
        if one.rank == 0:
            # What comes late goes to the next slot, and not to the one that was withdrawn.
            assert receive(one, 2, 1) == b"y"
            assert slots[1].buffer == b"*"
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 3, body), 3)


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_a_sender_wrote_after_giving_up_is_never_taken_for_its_message(tmp_path, gives_up):
    """With its counter-test: the sender that waits is believed."""
    body = """
    def body():
        one = MpiTransport.from_comm(chunk_bytes=1 << 20)
        size = 5 << 20
        if one.rank == 0:
            buffer = bytearray(b"A") * size
            if GIVES_UP:
                error = raised(DeadlineExceeded, lambda: send(one, 1, buffer, seconds=0.2))
                assert error.peers == (1,)
                buffer[:] = bytes(b"B") * size
                raised(TransportError, lambda: send(one, 1, b"again"))
            else:
                send(one, 1, buffer)
            time.sleep(1)
        else:
            time.sleep(0.7)
            if GIVES_UP:
                error = raised(TransportError, lambda: receive(one, 0, size))
                assert "gave up" in str(error), error
                assert "cut off" in str(raised(TransportError, lambda: receive(one, 0, 1)))
            else:
                assert receive(one, 0, size) == b"A" * size
        one.close()
    """.replace("GIVES_UP", str(gives_up))
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


def test_small_messages_wait_for_no_receiver_until_their_room_is_full(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm()
        data = content(60_000)
        if one.rank == 0:
            before = time.monotonic()
            for _ in range(100):
                send(one, 1, data)
            assert time.monotonic() - before < 0.6, "a sender waited for its receiver"
            many = [Outgoing(1, 8, b"s", (data,))] * 1500
            error = raised(DeadlineExceeded, lambda: one.exchange(many, (), deadline=Deadline(0.4)))
            assert error.peers == (1,)
            one.close()
        else:
            time.sleep(1)
            for _ in range(100):
                assert receive(one, 0, len(data)) == data
            one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


def test_a_rank_that_aborts_is_named_with_its_reason_while_it_makes_no_more_calls(tmp_path):
    body = """
    def deep(n):
        if n:
            deep(n - 1)
        raise ValueError("bad lr" + "!" * 5000)

    def body():
        one = MpiTransport.from_comm()
        meet(one)
        if one.rank == 2:
            try:
                deep(40)
            except ValueError as error:
                before = time.monotonic()
                one.abort(error)
                assert time.monotonic() - before < 1.5
            raised(ClosedError, lambda: send(one, 0, b""))
            time.sleep(2)  # MPI makes no progress here
            return
        before = time.monotonic()
        for _ in range(2):  # present and later waits; rank 0 waits for rank 1 and 1 for 0
            error = raised(RemoteError, lambda: receive(one, 1 - one.rank, 1, seconds=20))
            assert (error.rank, error.kind) == (2, "ValueError")
            assert error.message == "bad lr" + "!" * 5000
            assert "in deep" in error.traceback
        assert time.monotonic() - before < 1.5
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 3, body), 3)


def test_passing_a_failure_on_does_not_move_the_blame(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm()
        meet(one)
        if one.rank == 1:
            one.abort(PeerLost(2, "rank 2 died"))
        if one.rank == 0:
            assert raised(PeerLost, lambda: receive(one, 1, 1)).rank == 2
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 3, body), 3)


def test_a_rank_that_leaves_early_is_named_and_what_it_sent_still_arrives(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm()
        if one.rank == 1:
            send(one, 0, content(50_000))
            one.close()
            return
        time.sleep(0.3)
        assert receive(one, 1, 50_000) == content(50_000)
        before = time.monotonic()
        error = raised(PeerLost, lambda: receive(one, 1, 1))
        assert error.rank == 1 and "left" in str(error)
        assert time.monotonic() - before < 2
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


def test_closing_ends_the_waits_of_other_threads(tmp_path):
    body = """
    def body():
        one, caught = MpiTransport.from_comm(), []

        def wait():
            caught.append(raised(ClosedError, lambda: receive(one, 1 - one.rank, 1)))

        thread = threading.Thread(target=wait)
        thread.start()
        meet(one)
        one.close()
        thread.join(5)
        assert len(caught) == 1
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


def test_a_rank_that_makes_no_transport_is_waited_for_only_so_long(tmp_path):
    body = """
    def body():
        if load_mpi().COMM_WORLD.Get_rank() == 0:
            error = raised(DeadlineExceeded, lambda: MpiTransport.from_comm(deadline=Deadline(0.5)))
            assert "every rank" in str(error)
        say(f"rank {load_mpi().COMM_WORLD.Get_rank()} ok")
        time.sleep(1)
        os._exit(0)  # an unfinished collective would hold up MPI_Finalize
    """
    assert run_under_mpi(tmp_path, 2, body).ok_ranks() == [0, 1]


def test_a_sender_frozen_in_the_middle_ends_the_wait_and_the_transport(tmp_path):
    """Over TCP, where a large message needs its sender. What MPI still holds is said."""
    body = """
    def body():
        one = MpiTransport.from_comm()
        if one.rank == 0:
            send(one, 1, os.getpid().to_bytes(8, "little"))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
            raised(DeadlineExceeded, lambda: send(one, 1, bytes(64 << 20), seconds=1))
        else:
            pid = int.from_bytes(receive(one, 0, 8), "little")
            time.sleep(0.8)
            try:
                before = time.monotonic()
                error = raised(DeadlineExceeded,
                               lambda: receive(one, 0, 64 << 20, seconds=0.5))
                assert time.monotonic() - before < 3
                assert error.peers == (0,)
                assert "must not be used again" in error.__notes__[0]
                raised(ClosedError, lambda: send(one, 0, b""))
            finally:
                os.kill(pid, signal.SIGCONT)
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body, "--mca", "btl", "self,tcp"), 2)


@pytest.mark.parametrize("dies", [True, False])
@needs_fault_tolerance
def test_a_killed_rank_is_named_by_whoever_waits_for_it_or_for_one_that_does(tmp_path, dies):
    """With its counter-test: without the kill the same waits end well."""
    body = """
    def body():
        one = MpiTransport.from_comm()
        meet(one)
        if one.rank == 2:
            if DIES:
                os.kill(os.getpid(), signal.SIGKILL)
            send(one, 1, b"x")
        elif DIES:
            before = time.monotonic()
            # Rank 1 waits for the dead one, and rank 0 for rank 1.
            error = raised(PeerLost, lambda: receive(one, one.rank + 1, 1, seconds=20))
            assert error.rank == 2, error
            assert time.monotonic() - before < 5
            one.abort(error)
            say(f"rank {one.rank} ok")
            os._exit(0)  # MPI_Finalize is a collective
        elif one.rank == 1:
            assert receive(one, 2, 1) == b"x"
            send(one, 0, b"y")
        else:
            assert receive(one, 1, 1) == b"y"
        one.close()
    """.replace("DIES", str(dies))
    ended = run_under_mpi(tmp_path, 3, body, "--with-ft", "ulfm")
    assert ended.ok_ranks() == ([0, 1] if dies else [0, 1, 2]), ended.text
