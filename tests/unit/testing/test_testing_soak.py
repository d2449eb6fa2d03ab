"""The soak finds hangs, wrong results, leaks and wrong names; and in rlx it finds none of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from rlx.errors import PeerLost
from rlx.group import ProcessGroup
from rlx.net import MemoryTransport
from rlx.testing.outcomes import Outcome, failure_of
from rlx.testing.soak import KINDS, Trial, as_json, as_table, bodies, run_trials
from rlx.testing.soak.kinds import Kind
from rlx.testing.soak.worlds import watch


@dataclass(frozen=True)
class Prepared(Kind):
    """A kind that needs no shared meshes."""

    def prepare(self, worlds):
        pass


class Fine(Prepared):
    def run(self, trial, source, worlds):
        trial.must_finish([Outcome(0, finished=True)])


class Leaking(Prepared):
    def run(self, trial, source, worlds):
        threading.Thread(target=time.sleep, args=(7,), name="left", daemon=True).start()


class LyingGroup(ProcessGroup):
    """A group whose all-reduce is off by one in one element."""

    def all_reduce(self, array, *arguments, **options):
        total = super().all_reduce(array, *arguments, **options)
        total.reshape(-1)[-1] += 1
        return total


def trial_of(kind):
    return next(iter(run_trials(1, [0], [kind])))


def test_a_trial_without_a_fault_in_it_is_good():
    assert trial_of(Fine("fine", 1)).is_good


def test_what_is_left_open_is_found():
    trial = trial_of(Leaking("leaking", 1))
    assert trial.leaks == 1
    assert "left" in trial.problems[0]


def test_a_wrong_result_is_found():
    mesh = MemoryTransport.mesh(2)
    trial = Trial(0, "wrong")
    work = [
        lambda group: bodies.work(group, 5, lambda: False),
        lambda group: bodies.work(LyingGroup(group.transport), 5, lambda: False),
    ]
    trial.count(watch(mesh, lambda group: work[group.rank](group)))
    assert trial.wrong == 1
    assert "WrongResult" in trial.problems[0]


def test_the_right_results_of_the_same_work_are_not():
    mesh = MemoryTransport.mesh(3)
    trial, ends = Trial(0, "right"), iter([False] * 30 + [True])
    trial.must_finish(watch(mesh, lambda group: bodies.work(group, 5, lambda: next(ends))))
    assert trial.is_good
    for one in mesh:
        one.close()


def test_a_rank_that_hangs_and_one_that_names_the_wrong_rank_are_found():
    failed = Outcome(0, failure=failure_of(PeerLost(2, "gone")))
    hanging, wrong, right = Trial(0, "x"), Trial(1, "x"), Trial(2, "x")
    hanging.must_name([failed, None], lambda failure: True, 0.0)
    wrong.must_name([failed], lambda failure: failure.named == (1,), 0.0)
    right.must_name([failed], lambda failure: failure.named == (2,), 0.0)
    assert (hanging.hangs, wrong.named, right.named) == (1, False, True)
    assert [one.is_good for one in (hanging, wrong, right)] == [False, False, True]
    unfinished = Trial(3, "x")
    unfinished.must_finish([failed])
    assert not unfinished.is_good


def test_the_table_counts_by_kind_and_tells_every_problem():
    bad = Trial(7, "b", what="two ranks", named=False, error_s=2.0, problems=["rank 1: oh"])
    table = as_table([Trial(1, "a"), bad], ["a", "b"], 3.0).splitlines()
    assert [line.split() for line in table[1:4]] == [
        ["a", "1", "0", "0", "0", "0"],
        ["b", "1", "0", "0", "0", "0", "0.00", "2.000", "2.000"],
        ["all", "2", "0", "0", "0", "0", "0.00", "2.000", "2.000"],
    ]
    assert "b, trial 7: two ranks" in table
    assert json.loads(as_json([bad], 3.0))["trials"][0]["problems"] == ["rank 1: oh"]


def test_a_trial_is_a_function_of_the_seed_and_its_number():
    weights = [one.weight for one in KINDS]

    def drawn(seed, number):
        return random.Random(f"rlx soak {seed} {number}").choices(KINDS, weights)[0].name

    assert len({drawn(1, number) for number in range(2000)}) == len(KINDS)
    kinds = [one for one in KINDS if one.name == "transport: abort"]
    first, again = (list(run_trials(4, [11, 12], kinds)) for _ in range(2))
    assert [one.what for one in first] == [one.what for one in again]


def test_an_unknown_kind_is_refused():
    command = [sys.executable, "-m", "rlx.testing.soak", "--kinds", "earthquake"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "earthquake" in done.stderr


@pytest.mark.timeout(300)
def test_a_short_soak_finds_nothing():
    command = [sys.executable, "-m", "rlx.testing.soak", "--faults", "150", "--seed", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert len(trials) == 150
    assert [one["problems"] for one in trials] == [[]] * 150
    assert sum(one["error_s"] is not None for one in trials) > 30


def test_the_works_closed_forms_are_those_of_numpy():
    """For a world of one, where a sum is its only part."""
    (alone,) = MemoryTransport.mesh(1)
    with ProcessGroup(alone) as group:
        assert bodies.barriers(group) > 0
        total = group.all_reduce(np.arange(7))
        assert (total == np.arange(7)).all()
