"""The additions of a canonical sum as a list: worked out once, run at every call.

Pure: a program is made from the tree and the spans alone, and knows no array.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from rlx.errors import UsageError
from rlx.group.tree import Span, fold

Step: TypeAlias = tuple[int, int, int]
"""Registers: target, left, right."""


@dataclass(frozen=True, slots=True)
class Program:
    """The fold of a tree over known nodes.

    Registers 0 .. len(nodes) - 1 hold the nodes and are only read; the `scratch` registers behind
    them are written. `result` is the register that holds the sum after the last step: one of the
    nodes where there is nothing to add.
    """

    nodes: tuple[Span, ...]
    steps: tuple[Step, ...]
    scratch: int
    result: int


def program(leaves: int, nodes: Iterable[Span]) -> Program:
    """The additions that fold the tree over `leaves` leaves from `nodes`, in the tree's order.

    A scratch register is used again as soon as what it holds has been added.
    """
    known = tuple(nodes)
    register = {span: place for place, span in enumerate(known)}
    steps: list[Step] = []
    free: list[int] = []
    used = len(known)

    def add(left: int, right: int) -> int:
        nonlocal used
        own = [one for one in (left, right) if one >= len(known)]
        if own:
            target, *spare = own
            free.extend(spare)
        elif free:
            target = free.pop()
        else:
            target, used = used, used + 1
        steps.append((target, left, right))
        return target

    result = fold((0, leaves), register.get, add)
    if result is None:
        raise UsageError(f"none of the {leaves} leaves of a sum is known")
    return Program(known, tuple(steps), used - len(known), result)
