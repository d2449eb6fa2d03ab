"""The additions of a sum, as a list, are the tree's."""

from __future__ import annotations

import pytest

from rlx.errors import UsageError
from rlx.group import SumPlan, fold
from rlx.group.program import Program, program


def added_text(listed: Program) -> str:
    """What a program adds, in words: registers hold text, and scratch that is not set is None."""
    registers: list[str | None] = [str(span) for span in listed.nodes]
    registers += [None] * listed.scratch
    for target, left, right in listed.steps:
        one, other = registers[left], registers[right]
        assert None not in (one, other), "a register is read before it is written"
        registers[target] = f"({one}+{other})"
    total = registers[listed.result]
    assert total is not None
    return total


def plans() -> list[SumPlan]:
    dealt = [SumPlan.dealt(leaves, ranks) for leaves in range(1, 18) for ranks in range(1, 7)]
    with_gaps = [
        SumPlan(9, ((0, 3), (3, 3), (5, 9))),
        SumPlan(9, ((1, 2), (2, 3), (8, 9))),
        SumPlan(7, ((0, 0), (6, 7), (7, 7))),
    ]
    return dealt + with_gaps


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: f"{plan.leaves} {plan.ranges}")
def test_a_program_adds_what_the_tree_adds_in_its_order(plan: SumPlan) -> None:
    for first in range(plan.world_size):
        ranks = [first, *(rank for rank in range(plan.world_size) if rank != first)]
        spans = [span for rank in ranks for span in plan.nodes[rank]]
        known = {span: str(span) for span in spans}
        by_tree = fold((0, plan.leaves), known.get, lambda left, right: f"({left}+{right})")
        assert added_text(program(plan.leaves, spans)) == by_tree


def test_a_program_writes_to_no_node() -> None:
    for plan in plans():
        spans = [span for nodes in plan.nodes for span in nodes]
        listed = program(plan.leaves, spans)
        assert all(target >= len(spans) for target, _, _ in listed.steps)


def test_a_sum_of_many_leaves_needs_little_scratch() -> None:
    spans = [(leaf, leaf + 1) for leaf in range(1024)]
    assert program(1024, spans).scratch <= 10


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="none of the 4 leaves"):
        program(4, [])
