"""Ranks in real processes that are killed, crash, freeze, leave or raise: whom the others name."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from rlx.errors import UsageError
from rlx.testing import RankProcesses, summary
from rlx.testing.laws import nothing_left_open

DEADLINE_S = 40.0
# What an error may take beyond what causes it, on a machine that has other things to do.
MARGIN_S = 2.0


def others(outcomes, victim):
    return [one for one in outcomes if one.rank != victim]


def assert_named(outcomes, victim, kind, since_s, within_s):
    """Every other rank has ended by that error, which names the victim, in time."""
    for one in others(outcomes, victim):
        assert one.failure is not None, summary(outcomes)
        assert (one.failure.kind, one.failure.named) == (kind, (victim,)), summary(outcomes)
        assert one.failure.at_s - since_s < within_s, summary(outcomes)
        assert one.status == 1


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_all_others(victim):
    with nothing_left_open(), RankProcesses(3, "fault_bodies:barriers") as ranks:
        ranks.wait_for_line(victim, "inside", deadline_s=DEADLINE_S)
        killed_s = ranks.kill(victim)
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert_named(outcomes, victim, "PeerLost", killed_s, MARGIN_S)
        assert outcomes[victim].status == -signal.SIGKILL
        assert f"rank {victim}: was ended by SIGKILL" in summary(outcomes)


@pytest.mark.parametrize(
    ("how", "status"), [("crash", -signal.SIGSEGV), ("abort", -signal.SIGABRT), ("exit", 7)]
)
def test_a_rank_that_dies_without_a_word_is_named_by_all_others(how, status):
    with RankProcesses(3, "fault_bodies:ending", [1, how]) as ranks:
        ranks.wait_for_line(1, "inside", deadline_s=DEADLINE_S)
        since_s = time.monotonic()
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert_named(outcomes, 1, "PeerLost", since_s, MARGIN_S)
        assert "died: its connection ended without a goodbye" in outcomes[0].failure.message
        assert outcomes[1].status == status
        assert (outcomes[1].finished, outcomes[1].failure) == (False, None)


def test_a_frozen_rank_is_named_after_the_heartbeat():
    with RankProcesses(3, "fault_bodies:barriers", heartbeat_s=1.0) as ranks:
        ranks.wait_for_line(1, "inside", deadline_s=DEADLINE_S)
        frozen_s = ranks.freeze(1)
        outcomes = ranks.wait(deadline_s=DEADLINE_S, besides=[1])
        assert_named(outcomes, 1, "PeerLost", frozen_s, 1.0 + MARGIN_S)
        assert "no heartbeat for 1 s" in outcomes[0].failure.message
        assert outcomes[1].status is None


def test_a_rank_that_is_frozen_for_less_than_the_heartbeat_is_waited_for():
    """The counter-test: it is not the freezing that is an error."""
    with RankProcesses(2, "fault_bodies:skip_a_call", [9, 5], heartbeat_s=8.0) as ranks:
        ranks.freeze(1)
        time.sleep(0.5)
        ranks.resume(1)
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert [one.result for one in outcomes] == ["met", "met"], summary(outcomes)


def test_an_exception_reaches_the_others_with_its_message_and_its_traceback():
    with RankProcesses(3, "fault_bodies:ending", [1, "raise"]) as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert_named(outcomes, 1, "RemoteError", time.monotonic(), DEADLINE_S)
        assert outcomes[1].failure.kind == "ValueError"
        assert 'raise ValueError("bad lr")' in ranks.complained(1)
        for one in others(outcomes, 1):
            assert one.failure.message == "rank 1 failed: ValueError: bad lr"


def test_an_exception_under_way_carries_its_traceback_to_the_others():
    with RankProcesses(2, "fault_bodies:tell_the_traceback", [1]) as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert 'raise ValueError("bad lr")' in outcomes[0].result, summary(outcomes)


def test_an_early_return_is_named_as_that():
    with RankProcesses(3, "fault_bodies:return_early", [2]) as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert_named(outcomes, 2, "PeerLost", time.monotonic(), DEADLINE_S)
        assert "rank 2 left (closed its transport)" in outcomes[0].failure.message
        assert outcomes[2].result == "done"


def test_four_ranks_in_a_large_all_reduce_name_the_killed_one_and_wait_at_rest():
    """It is frozen first, so that the others wait for two seconds in the middle of the call."""
    heartbeat_s = 10.0
    with RankProcesses(4, "fault_bodies:all_reduces", heartbeat_s=heartbeat_s) as ranks:
        for rank in range(4):
            ranks.wait_for_line(rank, "inside", deadline_s=DEADLINE_S)
        ranks.freeze(2)
        time.sleep(2.2)
        killed_s = ranks.kill(2)
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
        assert_named(outcomes, 2, "PeerLost", killed_s, MARGIN_S)
        for rank in (0, 1, 3):
            cost = json.loads(ranks.printed(rank).splitlines()[-1])
            assert cost["waited_s"] > 1.5
            assert cost["busy"] < 0.5


def test_four_ranks_of_which_one_skips_a_call_say_who_waits_and_who_is_missing():
    with RankProcesses(4, "fault_bodies:skip_a_call", [3, 5], deadline_s=1.0) as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S, besides=[3])
    kinds = set()
    for one in outcomes[:3]:
        assert one.failure.named == (3,), summary(outcomes)
        assert "call 5.1: barrier()" in one.failure.message
        assert "in vain for rank 3" in one.failure.message
        kinds.add(one.failure.kind)
    # Whoever is later hears of it from the first.
    assert "DeadlineExceeded" in kinds
    assert kinds <= {"DeadlineExceeded", "RemoteError"}
    assert summary(outcomes).splitlines() == [
        "missing: rank 3",
        "rank 0, 1, 2: waited in vain for rank 3 at call 5.1: barrier()",
        "rank 3: has not ended",
    ]


def test_when_nobody_skips_the_call_all_meet():
    """The counter-test of the skipped call."""
    with RankProcesses(4, "fault_bodies:skip_a_call", [9, 5], deadline_s=20.0) as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
    assert summary(outcomes) == "rank 0, 1, 2, 3: finished"


def test_leaving_the_context_ends_ranks_that_run_or_are_frozen():
    with nothing_left_open():
        with RankProcesses(2, "fault_bodies:barriers") as ranks:
            ranks.wait_for_line(0, "inside", deadline_s=DEADLINE_S)
            ranks.freeze(1)
            pids = ranks.pids
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_function_that_is_not_there_is_an_error_of_every_rank():
    with RankProcesses(2, "fault_bodies:nothing") as ranks:
        outcomes = ranks.wait(deadline_s=DEADLINE_S)
    kinds = {one.failure.kind for one in outcomes}
    assert "UsageError" in kinds
    assert "there is no function 'nothing'" in summary(outcomes)


@pytest.mark.parametrize("function", ["nothing", ":x", "x:"])
def test_a_function_without_its_module_is_refused(function):
    with pytest.raises(UsageError):
        RankProcesses(2, function)
