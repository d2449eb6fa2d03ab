"""Ranks that come late to their meeting, and meetings beside each other."""

from __future__ import annotations

import time

import pytest
from net_tcp_kit import close_all, in_threads, meet, receive, send

from rlx.errors import AuthenticationError
from rlx.net import doors as doors_module
from rlx.net.deadline import Deadline
from rlx.net.doors import open_listener
from rlx.net.rendezvous import join_mesh
from rlx.net.tcp import TcpTransport


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_long_after_the_others_is_waited_for(late, monkeypatch):
    """As much later as a minute is beside the seconds that a stranger has to prove itself."""
    monkeypatch.setattr(doors_module, "STRANGER_S", 0.1)
    door = open_listener("127.0.0.1", 0)
    where = door.getsockname()

    def rank_of(rank):
        time.sleep(1.2 if rank == late else 0)
        own = {"coordinator_listener": door} if rank == 0 else {}
        return join_mesh(rank, 3, where, deadline=Deadline(20), **own)

    made = in_threads([lambda r=r: rank_of(r) for r in range(3)])
    assert all(isinstance(one, TcpTransport) for one in made), made
    send(made[late], 2, 8, b"late")
    assert receive(made[2], late, 8, 4) == b"late"
    close_all(made)


def test_two_jobs_with_one_id_and_different_tokens_meet_at_once_and_do_not_mix():
    tokens = [b"the first token, long enough", b"the other token, long enough"]
    made = in_threads([lambda t=t: meet(2, token=t, job="nightly") for t in tokens])
    for job, (first, second) in enumerate(made):
        send(first, 1, 8, b"job %d" % job)
        assert receive(second, 0, 8, 5) == b"job %d" % job
    for one in made:
        close_all(one)


def test_a_rank_of_the_other_job_with_the_same_id_is_refused_and_the_job_goes_on():
    door = open_listener("127.0.0.1", 0)
    where = door.getsockname()
    mine, other = b"the first token, long enough", b"the other token, long enough"
    rank_0, stranger, rank_1 = in_threads(
        [
            lambda: join_mesh(
                0,
                2,
                where,
                token=mine,
                job="nightly",
                coordinator_listener=door,
                deadline=Deadline(20),
            ),
            lambda: join_mesh(1, 2, where, token=other, job="nightly", deadline=Deadline(20)),
            lambda: (
                time.sleep(0.3),
                join_mesh(1, 2, where, token=mine, job="nightly", deadline=Deadline(20)),
            )[1],
        ]
    )
    assert isinstance(stranger, AuthenticationError), stranger
    assert isinstance(rank_0, TcpTransport), rank_0
    assert isinstance(rank_1, TcpTransport), rank_1
    close_all([rank_0, rank_1])
