"""Worlds of threads: whose result and whose error come out, and what a stuck rank looks like."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError, UsageError
from rlx.net import Deadline, Incoming, MemoryTransport, Outgoing
from rlx.testing import make_mesh, run_on_mesh, run_ranks


def wait_for(transport, peer, seconds=30.0):
    slot = [Incoming(peer, 5, b"s", bytearray(1))]
    transport.exchange((), slot, deadline=Deadline(seconds))


@pytest.mark.parametrize("kind", ["memory", "tcp", "sockets"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_results_come_in_rank_order_and_all_transports_are_closed(kind, world_size):
    mesh = make_mesh(kind, world_size)

    def body(transport):
        time.sleep(0.02 * (world_size - transport.rank))
        return transport.rank, transport.world_size, type(transport)

    results = run_on_mesh(mesh, body)
    assert results == [(rank, world_size, type(mesh[0])) for rank in range(world_size)]
    for transport in mesh:
        with pytest.raises(ClosedError):
            transport.exchange([Outgoing(0, 5, b"s")], (), deadline=Deadline(1))


def test_a_mesh_of_an_unknown_kind_is_refused():
    with pytest.raises(UsageError, match="a mesh is 'memory', 'tcp' or 'sockets'; got 'udp'"):
        make_mesh("udp", 2)


@pytest.mark.parametrize("kind", ["memory", "tcp", "sockets"])
def test_the_error_of_the_rank_that_failed_first_is_raised_with_its_rank(kind):
    others = []

    def body(transport):
        if transport.rank == 2:
            raise ValueError("bad lr")
        try:
            wait_for(transport, 1 - transport.rank)
        except RemoteError as error:
            others.append((error.rank, error.message))
            raise

    with pytest.raises(ValueError, match="bad lr") as caught:
        run_on_mesh(make_mesh(kind, 3), body)
    assert caught.value.__notes__ == ["rank 2 of 3 failed first"]
    assert others == [(2, "bad lr")] * 2


def test_a_rank_that_returns_early_is_no_failure_until_it_is_missed():
    def body(transport):
        if transport.rank == 1:
            transport.close()
            return
        wait_for(transport, 1)

    with pytest.raises(PeerLost, match="rank 1 left") as caught:
        run_on_mesh(MemoryTransport.mesh(2), body)
    assert caught.value.__notes__ == ["rank 0 of 2 failed first"]


def test_a_rank_that_never_ends_is_reported_with_its_stack():
    finish = threading.Event()

    def goes_astray():
        finish.wait(30)

    def body(transport):
        if transport.rank == 1:
            goes_astray()

    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"after 0.2 s:\nrank 1:\n") as caught:
        run_on_mesh(MemoryTransport.mesh(2), body, watchdog_s=0.2)
    finish.set()
    assert "goes_astray" in str(caught.value)
    assert "rank 0" not in str(caught.value)
    assert time.monotonic() - begun < 10


def test_a_rank_stuck_in_an_exchange_is_reported_as_that_and_not_as_closed():
    for _ in range(20):  # the thread that is woken by the closing races with the report
        with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
            run_on_mesh(MemoryTransport.mesh(2), lambda one: wait_for(one, 0), watchdog_s=0.01)


def test_a_rank_that_is_stuck_does_not_hide_the_one_that_failed():
    finish = threading.Event()

    def body(transport):
        if transport.rank == 1:
            raise ValueError("bad lr")
        finish.wait(30)

    with pytest.raises(ValueError, match="bad lr") as caught:
        run_on_mesh(MemoryTransport.mesh(2), body, watchdog_s=0.2)
    finish.set()
    first, stuck = caught.value.__notes__
    assert first == "rank 1 of 2 failed first"
    assert stuck.startswith("ranks still running after 0.2 s:\nrank 0:\n")


@pytest.mark.parametrize("kind", ["memory", "tcp", "sockets"])
def test_run_ranks_gives_each_rank_its_group(kind):
    def body(group):
        return group.rank, group.all_reduce(np.full(3, group.rank + 1.0, np.float32))

    results = run_ranks(3, body, transport=kind)
    assert [rank for rank, _ in results] == [0, 1, 2]
    for _, total in results:
        np.testing.assert_array_equal(total, np.full(3, 6, np.float32))


def test_run_ranks_gives_its_groups_the_deadline():
    def body(group):
        if group.rank == 0:
            group.barrier()
        else:
            time.sleep(1.0)

    with pytest.raises(DeadlineExceeded, match="rank 1") as caught:
        run_ranks(2, body, transport="memory", deadline=0.2)
    assert caught.value.__notes__ == ["rank 0 of 2 failed first"]
