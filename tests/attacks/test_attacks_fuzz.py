"""The fuzzer itself, shortly: every decoder takes an input or refuses it by an error of its own."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from rlx.errors import Malformed
from rlx.testing.fuzz.__main__ import TARGETS, Finding, as_table, fuzz_target, outcome_of
from rlx.testing.fuzz.target import Target


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_valid_inputs_of_a_decoder_are_not_refused_as_bytes(name):
    target = TARGETS[name]
    outcomes = {outcome_of(target, data) for data in target.seeds()}
    assert outcomes & {"accepted", "left", "mismatch"}, outcomes


def test_a_few_thousand_mutations_find_nothing():
    command = [sys.executable, "-m", "rlx.testing.fuzz", "--inputs", "6000", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(TARGETS)


def test_the_same_seed_gives_the_same_inputs():
    target = TARGETS["notice"]
    first, again, other = (fuzz_target(target, 300, seed, {}).outcomes for seed in (1, 1, 2))
    assert first == again
    assert first != other


def _crash(data: bytes) -> str:
    if b"\xff" in data:
        raise IndexError("past the end")
    if len(data) > 4:
        raise Malformed("too long")
    return "accepted"


def test_a_decoder_that_crashes_is_found_with_the_input_that_did_it():
    broken = Target("broken", _crash, lambda: [b"1234"])
    with pytest.raises(Finding, match="broken: IndexError: past the end") as found:
        fuzz_target(broken, 100_000, 1, {})
    assert b"\xff" in found.value.data
    kept = {"accepted--short": b"12345"}
    with pytest.raises(Finding, match="accepted--short is Malformed"):
        fuzz_target(broken, 10, 1, kept)


def test_mutations_are_bounded_and_reach_what_is_behind_the_envelope():
    generator = random.Random(1)
    for name in ("graph", "link"):
        target = TARGETS[name]
        sources = target.seeds()
        for _ in range(200):
            assert len(target.mutate(generator, generator.choice(sources), sources)) <= 1 << 16
    tally = fuzz_target(TARGETS["facts"], 400, 1, {})
    assert tally.outcomes["accepted"] > 5
    assert "facts" in as_table([tally])
