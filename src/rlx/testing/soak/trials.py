"""One trial of the soak, and many: what is watched around a fault, and what is noted of it."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.testing.laws import nothing_left_open
from rlx.testing.outcomes import Failure, Outcome, summary

if TYPE_CHECKING:
    from rlx.testing.soak.kinds import Kind

_SHARED_MEMORY = Path("/dev/shm")
LONGEST_WAIT_S = 60.0
"""A rank that has not ended by then hangs; every deadline of the soak is far below."""


@dataclass
class Trial:
    """What came of one fault.

    named      whether every rank that had to name a rank named the right one; None: none had to
    error_s    from the fault to the last of the errors that it caused
    problems   all that should not be, in words
    """

    number: int
    kind: str
    what: str = ""
    hangs: int = 0
    wrong: int = 0
    leaks: int = 0
    named: bool | None = None
    error_s: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong but what was meant to."""
        return not self.problems

    # What kinds note

    def count(self, outcomes: Sequence[Outcome | None]) -> None:
        """Note ranks that hang and results that are wrong."""
        self.hangs = sum(one is None for one in outcomes)
        failures = [one.failure for one in outcomes if one is not None and one.failure is not None]
        self.wrong = sum(failure.kind == "WrongResult" for failure in failures)
        if self.hangs or self.wrong:
            self.problems.append(summary(outcomes))

    def must_finish(self, outcomes: Sequence[Outcome | None]) -> None:
        """Note ranks that did not finish, though the fault was one that a run survives."""
        self.count(outcomes)
        if any(one is not None and not one.finished for one in outcomes):
            self.problems.append(f"an error under a survivable fault:\n{summary(outcomes)}")

    def must_name(
        self,
        outcomes: Sequence[Outcome | None],
        right: Callable[[Failure], bool],
        since_s: float | None,
        *,
        all_fail: bool = True,
        all_name: bool = True,
    ) -> None:
        """Note whether these ranks ended by errors that name the right rank, and how soon.

        Without `all_name` it is enough that one of them does; `named` still says whether all do.
        """
        self.count(outcomes)
        ended = [one for one in outcomes if one is not None]
        failures = [one.failure for one in ended if one.failure is not None]
        if since_s is None:
            self.problems.append(f"the fault did not happen:\n{summary(outcomes)}")
            return
        if all_fail and len(failures) < len(ended):
            self.problems.append(f"a rank without an error:\n{summary(outcomes)}")
        if failures:
            verdicts = [right(failure) for failure in failures]
            self.named = all(verdicts)
            self.error_s = max(failure.at_s for failure in failures) - since_s
            if not (self.named if all_name else any(verdicts)):
                self.problems.append(f"the wrong rank is named:\n{summary(outcomes)}")


def run_trials(seed: int, numbers: Sequence[int], kinds: Sequence[Kind]) -> Iterator[Trial]:
    """Run the trials with these numbers, one after the other. What they share is closed at last."""
    from rlx.testing.soak.worlds import Worlds

    with nothing_left_open(), Worlds() as worlds:
        for number in numbers:
            source = random.Random(f"rlx soak {seed} {number}")
            kind = source.choices(kinds, [one.weight for one in kinds])[0]
            yield _run(kind, Trial(number, kind.name), source, worlds)


def _run(kind: Kind, trial: Trial, source: random.Random, worlds: Any) -> Trial:
    kind.prepare(worlds)
    shared_before = _shared_memory()
    try:
        with nothing_left_open():
            kind.run(trial, source, worlds)
            gc.collect(0)
    except AssertionError as error:
        trial.leaks += 1
        trial.problems.append(str(error))
    if left := _unused(_shared_memory() - shared_before):
        trial.leaks += 1
        trial.problems.append(f"left in {_SHARED_MEMORY}: {', '.join(sorted(left))}")
    return trial


def _shared_memory() -> set[str]:
    """The entries that are of rlx; other programs of the machine have theirs."""
    names = os.listdir(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else []
    return {name for name in names if "rlx" in name}


def _unused(names: set[str]) -> set[str]:
    """Of these names in shared memory, those that no living process has mapped: the left ones."""
    if not names:
        return names
    mapped = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped += path.read_text()
        except OSError:
            continue  # It has ended, or is not ours to read.
    return {name for name in names & _shared_memory() if f"{_SHARED_MEMORY}/{name}" not in mapped}


class Later:
    """Does something in a thread of its own after a while; leaving the context waits for it."""

    def __init__(self, delay_s: float, action: Callable[[], object]) -> None:
        self._timer = threading.Timer(delay_s, action)
        self._timer.daemon = True

    def __enter__(self) -> Later:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.join(LONGEST_WAIT_S)
