"""Faults in a transport: a plan is a value, survivable faults change no bit, the others are errors
that name the faulty rank."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rlx.errors import (
    DeadlineExceeded,
    DisagreementError,
    Malformed,
    PeerLost,
    RemoteError,
    UsageError,
)
from rlx.group import ProcessGroup
from rlx.net import Deadline, Incoming, Outgoing
from rlx.testing import (
    SURVIVABLE,
    Fault,
    FaultKind,
    FaultPlan,
    FaultyTransport,
    make_mesh,
    named_by,
    run_on_mesh,
    watch_ranks,
)
from rlx.testing.laws import LAWS, nothing_left_open

FORMS = ["memory", "tcp"]
CALLS = 8


def work(transport):
    """A few collectives of both kinds of movement, and their sum in closed form."""
    group = ProcessGroup(transport, deadline=5)
    size, found = group.world_size, []
    for number in range(CALLS):
        count = 3 if number % 2 else 3000
        array = np.arange(count, dtype=np.int64) * (group.rank + 1) + number
        got = group.all_reduce(array)
        right = np.arange(count) * (size * (size + 1) // 2) + number * size
        found.append(bool((got == right).all()))
    return found


def faulty_mesh(form, world_size, plan):
    return [
        FaultyTransport(one, plan if one.rank == plan.rank else FaultPlan(one.rank, 0))
        for one in make_mesh(form, world_size)
    ]


def closed(transports):
    for one in transports:
        one.close()


def errors_of_others(form, fault, world_size=3, rank=1):
    transports = faulty_mesh(form, world_size, FaultPlan(rank, 0, (fault,)))
    with nothing_left_open():
        outcomes = watch_ranks(transports, work, watchdog_s=20)
        closed(transports)
    assert all(outcomes), "a rank hangs"
    return [one.failure for one in outcomes if one.rank != rank], transports[rank]


def test_equal_seeds_and_ranks_give_equal_plans_and_others_do_not():
    plans = [FaultPlan.draw(seed, rank, faults=5) for seed in range(20) for rank in range(4)]
    again = [FaultPlan.draw(seed, rank, faults=5) for seed in range(20) for rank in range(4)]
    assert plans == again
    assert len({plan.faults for plan in plans}) == len(plans)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(SURVIVABLE)


def test_a_plan_says_in_words_what_it_holds():
    faults = (
        Fault(FaultKind.DELAY, 3, count=2, amount=0.25),
        Fault(FaultKind.DROP, 7),
    )
    assert str(FaultPlan(2, 9, faults)).splitlines() == [
        "rank 2, seed 9:",
        "  exchanges 3..4: begins 0.25 s late",
        "  exchange 7: sends nothing, and says that it has",
    ]


@pytest.mark.parametrize(
    "wrong", [{"exchange": 0}, {"exchange": 1, "count": 0}, {"exchange": 1, "amount": -1.0}]
)
def test_a_fault_that_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        Fault(FaultKind.DELAY, **wrong)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SURVIVABLE)
def test_a_survivable_fault_changes_no_bit(form, kind):
    plan = FaultPlan.draw(1, 1, kinds=[kind], faults=4, within=CALLS)
    transports = faulty_mesh(form, 3, plan)
    with nothing_left_open():
        assert run_on_mesh(transports, work) == [[True] * CALLS] * 3
    assert {one.fault.kind for one in transports[1].happened} == {kind}
    assert not transports[0].happened


@pytest.mark.parametrize("kind", SURVIVABLE)
def test_the_laws_hold_under_survivable_faults(kind):
    for text, law in LAWS.items():
        if "deadline" in text or "close" in text:
            continue  # These measure time, or count on what was sent being sent at once.
        amount = 1e9 if kind is FaultKind.THROTTLE else 0.001
        plan = FaultPlan(1, 5, (Fault(kind, 1, count=1000, amount=amount),))
        run_on_mesh(faulty_mesh("memory", 3, plan), law.body)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exchange", [1, 4])
@pytest.mark.parametrize("kind", [FaultKind.WRONG_STAMP, FaultKind.WRONG_SIZE, FaultKind.DUPLICATE])
def test_a_wrong_message_is_a_disagreement_that_names_its_sender(form, kind, exchange):
    failures, faulty = errors_of_others(form, Fault(kind, exchange))
    assert [one.exchange for one in faulty.happened] == [exchange]
    for failure in failures:
        assert failure.kind == DisagreementError.__name__, failure
        assert failure.named == (1,), failure


@pytest.mark.parametrize("form", FORMS)
def test_what_is_never_sent_ends_with_an_error_that_names_its_sender(form):
    failures, _ = errors_of_others(form, Fault(FaultKind.DROP, 3))
    for failure in failures:
        assert failure.named == (1,), failure
        assert failure.kind in ("DisagreementError", "DeadlineExceeded", "RemoteError"), failure


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "error", "word"),
    [(FaultKind.ABORT, "RemoteError", "by plan"), (FaultKind.CLOSE, "PeerLost", "left")],
)
def test_an_end_by_plan_is_told_to_the_others_as_what_it_is(form, kind, error, word):
    failures, _ = errors_of_others(form, Fault(kind, 3))
    for failure in failures:
        assert (failure.kind, failure.named) == (error, (1,)), failure
        assert word in failure.message


def test_without_a_fault_the_same_work_ends_well():
    """The counter-test of all the errors above."""
    transports = faulty_mesh("memory", 3, FaultPlan(1, 0))
    assert run_on_mesh(transports, work) == [[True] * CALLS] * 3
    assert transports[1].exchanges > CALLS


def test_a_delay_takes_no_longer_than_the_deadline():
    plan = FaultPlan(0, 0, (Fault(FaultKind.DELAY, 1, amount=30.0),))
    transport = FaultyTransport(make_mesh("memory", 2)[0], plan)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        transport.exchange((), [Incoming(1, 5, b"s", bytearray(1))], deadline=Deadline(0.2))
    assert time.monotonic() - begun < 5
    transport.close()


def test_messages_of_one_tag_keep_their_order_when_others_are_shuffled():
    plan = FaultPlan(0, 3, (Fault(FaultKind.REORDER, 1, count=100, amount=0.002),))
    mesh = faulty_mesh("memory", 2, plan)

    def body(one):
        tags = range(5, 10)
        if one.rank == 0:
            sends = [Outgoing(1, tag, b"%d" % n, (bytes([n]),)) for tag in tags for n in range(4)]
            return one.exchange(sends, (), deadline=Deadline(10))
        slots = {(tag, n): bytearray(1) for tag in tags for n in range(4)}
        receives = [Incoming(0, tag, b"%d" % n, slot) for (tag, n), slot in slots.items()]
        one.exchange((), receives, deadline=Deadline(10))
        return all(slot[0] == n for (_, n), slot in slots.items())

    assert run_on_mesh(mesh, body) == [None, True]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (PeerLost(3, "gone"), (3,)),
        (DeadlineExceeded("late", [2, 1]), (1, 2)),
        (RemoteError(2, "ValueError", "bad lr"), (2,)),
        (
            RemoteError(0, "DeadlineExceeded", "rank 0 waited 2 s in vain for rank 3: a message"),
            (3,),
        ),
        (DisagreementError("ranks called:\n  rank 0, 2: x\n  rank 1: y"), (1,)),
        (RemoteError(0, "DisagreementError", "ranks called:\n  rank 0, 2: x\n  rank 1: y"), (1,)),
        (Malformed("rank 2 sent b'r(' where a frame starts"), (2,)),
        (ValueError("rank 1"), ()),
    ],
)
def test_an_error_names_the_ranks_that_its_text_and_numbers_blame(error, named):
    assert named_by(error) == named
