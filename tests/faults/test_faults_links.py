"""Links between living ranks that are cut, reset, half-open, silent, slow or wrong."""

from __future__ import annotations

import re
import time

import pytest

from rlx.group import ProcessGroup
from rlx.testing import (
    FaultProxy,
    LinkFault,
    LinkFaultKind,
    RankProcesses,
    proxied_mesh,
    summary,
    watch_ranks,
)
from rlx.testing.laws import nothing_left_open

DEADLINE_S = 40.0
HEARTBEAT_S = 1.5
MARGIN_S = 2.5
# What an end of data alone waits for: a word on the control connection.
VERDICT_S = 2.0
# A rank that has never been heard of is given more time.
FIRST_HEARTBEATS_S = 0.1


def meet_for_ever(transport, deadline_s):
    group = ProcessGroup(transport, deadline=deadline_s)
    while True:
        group.barrier()


def outcomes_after(fault, links, world_size=3, heartbeat_s=10.0, deadline_s=20.0):
    """Threads that meet until a fault on these links ends it; and when the fault happened."""
    with nothing_left_open(), FaultProxy() as proxy:
        mesh, routes = proxied_mesh(proxy, world_size, heartbeat_s=heartbeat_s)
        watch_ranks(mesh, lambda one: ProcessGroup(one).barrier(), watchdog_s=DEADLINE_S)
        time.sleep(FIRST_HEARTBEATS_S)
        for link in links:
            routes[link].inject(fault)
        outcomes = watch_ranks(
            mesh, lambda one: meet_for_ever(one, deadline_s), watchdog_s=DEADLINE_S
        )
        happened_s = [routes[link].happened_s for link in links]
    assert None not in happened_s
    return outcomes, max(happened_s)


def assert_ended(outcomes, since_s, within_s, named):
    """Each rank has ended in time, by an error that names one rank of its entry in `named`."""
    for one, allowed in zip(outcomes, named, strict=True):
        assert one.failure is not None, summary(outcomes)
        assert len(one.failure.named) == 1, summary(outcomes)
        assert set(one.failure.named) <= allowed, summary(outcomes)
        assert one.failure.at_s - since_s < within_s, summary(outcomes)


@pytest.mark.parametrize("kind", [LinkFaultKind.CUT, LinkFaultKind.RESET])
def test_the_ends_of_a_cut_link_name_each_other_and_the_third_rank_one_of_them(kind):
    outcomes, since_s = outcomes_after(LinkFault(kind, after_bytes=300), [(2, 1)])
    assert_ended(outcomes, since_s, MARGIN_S, [{1, 2}, {1, 2}, {1, 2}])
    assert {one.failure.kind for one in outcomes} == {"PeerLost"}


@pytest.mark.parametrize(("kind", "connection"), [(LinkFaultKind.RESET, 0), (LinkFaultKind.CUT, 1)])
def test_one_connection_of_a_link_that_is_cut_alone_ends_the_job_too(kind, connection):
    fault = LinkFault(kind, after_bytes=300, connection=connection)
    outcomes, since_s = outcomes_after(fault, [(1, 0)])
    assert_ended(outcomes, since_s, VERDICT_S + MARGIN_S, [{0, 1}, {0, 1}, {0, 1}])


@pytest.mark.parametrize("backward", [False, True])
def test_all_ranks_name_the_one_that_is_not_heard_over_a_half_open_link(backward):
    """Rank 2 has connected to rank 1; what goes backward is what rank 1 says."""
    dumb = 1 if backward else 2
    fault = LinkFault(LinkFaultKind.HALF_OPEN, backward=backward)
    outcomes, since_s = outcomes_after(fault, [(2, 1)], heartbeat_s=HEARTBEAT_S)
    assert_ended(outcomes, since_s, HEARTBEAT_S + MARGIN_S, [{dumb}] * 3)


def test_a_rank_whose_host_vanishes_is_named_by_all_others():
    with (
        nothing_left_open(),
        FaultProxy() as proxy,
        RankProcesses(3, "fault_bodies:barriers", proxy=proxy, heartbeat_s=HEARTBEAT_S) as ranks,
    ):
        ranks.wait_for_line(1, "inside", deadline_s=DEADLINE_S)
        for link in ((1, 0), (2, 1)):
            ranks.routes[link].inject(LinkFault(LinkFaultKind.VANISH))
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        since_s = ranks.routes[2, 1].happened_s
    # The rank itself sees both others fall silent at once.
    assert_ended(outcomes, since_s, HEARTBEAT_S + MARGIN_S, [{1}, {0, 2}, {1}])
    assert "no heartbeat" in outcomes[0].failure.message


def test_a_rank_that_is_told_of_its_own_death_says_that_it_lives():
    """Rank 1 hears rank 2, which does not hear rank 1."""
    fault = LinkFault(LinkFaultKind.HALF_OPEN, backward=True)
    outcomes, _ = outcomes_after(fault, [(2, 1)], heartbeat_s=0.5)
    said = r"rank [02] takes rank 1 for lost, which lives: rank 1 sent no heartbeat for 0\.5 s"
    assert re.match(said, outcomes[1].failure.message), outcomes[1].failure


def test_a_link_that_is_silent_both_ways_ends_all_ranks():
    fault = LinkFault(LinkFaultKind.VANISH)
    outcomes, since_s = outcomes_after(fault, [(2, 0)], heartbeat_s=HEARTBEAT_S)
    assert_ended(outcomes, since_s, HEARTBEAT_S + MARGIN_S, [{0, 2}] * 3)


@pytest.mark.parametrize("connection", [0, 1])
def test_a_changed_byte_among_headers_ends_all_ranks_and_an_end_of_the_link_is_named(connection):
    fault = LinkFault(LinkFaultKind.CORRUPT, after_bytes=77, connection=connection)
    outcomes, _ = outcomes_after(fault, [(1, 0)], heartbeat_s=HEARTBEAT_S, deadline_s=2.0)
    for one in outcomes:
        assert one.failure is not None, summary(outcomes)
    assert {0, 1} & {rank for one in outcomes for rank in one.failure.named}, summary(outcomes)


@pytest.mark.parametrize(
    "fault",
    [
        LinkFault(LinkFaultKind.DELAY, 100, 0.03, for_bytes=4000),
        LinkFault(LinkFaultKind.THROTTLE, 100, 2e6, for_bytes=200_000),
        LinkFault(LinkFaultKind.FRAGMENT, 100, 1.0, for_bytes=4000),
    ],
    ids=lambda fault: fault.kind,
)
def test_a_link_that_is_only_slow_changes_no_bit(fault):
    with (
        nothing_left_open(),
        FaultProxy() as proxy,
        RankProcesses(3, "fault_bodies:right_sums", [12], proxy=proxy) as ranks,
    ):
        for route in ranks.routes.values():
            route.inject(fault)
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert [one.result for one in outcomes] == [12] * 3, summary(outcomes)
        assert all(route.happened_s is not None for route in ranks.routes.values())


def test_the_time_of_a_fault_is_told_by_the_clock_of_the_outcomes():
    before_s = time.monotonic()
    outcomes, since_s = outcomes_after(LinkFault(LinkFaultKind.RESET), [(1, 0)], world_size=2)
    assert before_s < since_s <= min(one.failure.at_s for one in outcomes)
