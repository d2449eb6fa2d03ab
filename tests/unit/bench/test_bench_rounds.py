"""Measuring in turns: everybody's turn comes in every round, and figures are what they say."""

from __future__ import annotations

import pytest

from rlx.bench.calls import time_calls, whole_bytes
from rlx.bench.collectives import measure_collectives
from rlx.bench.links import Link, measure_links, worst
from rlx.bench.rounds import LEAST_ROUNDS, Samples, measure_in_turns
from rlx.bench.stages import ContenderLost
from rlx.errors import UsageError


class Pretended:
    """A stage whose calls take what they are told to; it records every turn."""

    def __init__(self, cost_s: dict[str, float], ranks: int = 2, dies: str = "", turn: int = 0):
        self.ranks = ranks
        self.about: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.turns: list[tuple] = []
        self._cost_s, self._dies, self._turn = cost_s, dies, turn

    def collective(self, contender, call, size_bytes, warm_ups, repeats):
        self.turns.append((contender, call, size_bytes, warm_ups, repeats))
        if contender == self._dies and len(self.turns) > self._turn:
            self.lost[contender] = "it died"
            raise ContenderLost("it died")
        return [self._cost_s[contender]] * repeats

    def link(self, contender, pair, size_bytes, warm_ups, repeats):
        self.turns.append((contender, pair, size_bytes, warm_ups, repeats))
        return [self._cost_s[contender] * (1 + pair[0])] * repeats

    def elapsed_s(self):
        return 0.0


def test_every_contender_has_a_turn_at_every_size_in_every_round_and_no_one_always_goes_first():
    stage = Pretended({"a": 1e-3, "b": 2e-3})
    run = measure_collectives(stage, ["a"], against=["b"], sizes=[4, 8], seconds=0)
    rounds = [stage.turns[start : start + 4] for start in range(0, len(stage.turns), 4)]
    assert len(rounds) == LEAST_ROUNDS + 1
    for one in rounds:
        assert {(turn[0], turn[2]) for turn in one} == {("a", 4), ("a", 8), ("b", 4), ("b", 8)}
    assert {one[0][0] for one in rounds} == {"a", "b"}
    figure = run.of("all_reduce", 8, "a")
    assert figure.ratios == {"b": 0.5}
    assert figure.bytes_per_s == pytest.approx(8000)
    assert run.of("all_reduce", 8, "b").ratios == {}


def test_the_first_round_only_finds_out_what_a_call_costs():
    stage = Pretended({"slow": 1.0, "fast": 1e-6})
    run = measure_collectives(stage, ["slow", "fast"], sizes=[4], seconds=0)
    counts = {name: [turn[4] for turn in stage.turns if turn[0] == name] for name in stage._cost_s}
    assert counts["slow"] == [3] * (LEAST_ROUNDS + 1)
    assert counts["fast"] == [3] + [200] * LEAST_ROUNDS
    assert len(run.of("all_reduce", 4, "fast").samples.all) == 200 * LEAST_ROUNDS


def test_a_contender_that_is_lost_on_the_way_is_left_out_and_the_rest_goes_on():
    stage = Pretended({"a": 1e-3, "b": 1e-3}, dies="b", turn=3)
    run = measure_collectives(stage, ["a"], against=["b"], sizes=[4], seconds=0)
    assert [one.contender for one in run.figures] == ["a"]
    assert run.figures[0].ratios == {}
    assert run.lost == {"b": "it died"}
    assert len(run.figures[0].samples.rounds) == LEAST_ROUNDS


def test_measuring_ends_when_nobody_is_left():
    stage = Pretended({"a": 1e-3}, dies="a")
    assert (
        measure_in_turns(
            stage, ["a"], [1], lambda *_: stage.collective("a", "", 1, 1, 1), seconds=9
        )
        == {}
    )
    assert len(stage.turns) == 1


def test_the_slowest_pair_is_named_and_both_directions_are_measured():
    run = measure_links(Pretended({"a": 1e-3}, ranks=3), ["a"], sizes=[4], seconds=0)
    assert {link.pair for link in run.links} == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    assert worst(run.links).pair[0] == 2
    assert run.links[0].latency_s == pytest.approx(0.5e-3)
    with pytest.raises(UsageError, match="one rank"):
        measure_links(Pretended({"a": 1e-3}, ranks=1), ["a"], seconds=0)


def test_a_long_message_has_a_bandwidth_and_a_short_one_a_latency():
    samples = Samples([[0.5, 0.5]])
    assert Link("a", 1 << 20, (0, 1), samples).bytes_per_s == 2 << 20
    assert not Link("a", 1 << 20, (0, 1), samples).is_short
    assert Link("a", 4, (0, 1), samples).is_short


def test_quartiles_and_median_are_of_the_calls_of_all_rounds():
    samples = Samples([[1.0, 2.0], [3.0], [4.0, 5.0]])
    assert samples.median_s == 3
    assert samples.quartiles_s == (2, 4)


def test_a_size_is_rounded_to_what_the_ranks_can_share():
    assert whole_bytes("all_reduce", 4, 3) == 4
    assert whole_bytes("all_gather", 4, 3) == 12
    assert whole_bytes("reduce_scatter", 4096, 3) == 4092
    assert whole_bytes("barrier", 4096, 3) == 0


def test_the_garbage_collector_rests_while_calls_are_timed_and_is_on_again_afterwards():
    import gc

    seen = []
    time_calls(lambda: seen.append(gc.isenabled()), 3)
    assert seen == [False] * 3
    assert gc.isenabled()
