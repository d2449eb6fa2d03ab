"""The laws that hold for every transport, as functions that someone who writes a new one can run.

Each law is a body that every rank runs at the same time on a fresh transport:

    for text, law in LAWS.items():
        with nothing_left_open():
            run_on_mesh(my_mesh(3), law.body)

It raises where the law does not hold, and says what it saw. `law.least_ranks` is the smallest world
in which it says anything. `dying`, which needs a way to die, and `huge_message`, which needs
memory, stand apart from the table.
"""

from __future__ import annotations

from rlx.testing.law_kit import Body, Law
from rlx.testing.laws_ending import ENDING, dying
from rlx.testing.laws_moving import MOVING, huge_message
from rlx.testing.leftovers import nothing_left_open

LAWS: dict[str, Law] = {**MOVING, **ENDING}
"""Each law by the sentence that it checks."""

__all__ = ["LAWS", "Body", "Law", "dying", "huge_message", "nothing_left_open"]
