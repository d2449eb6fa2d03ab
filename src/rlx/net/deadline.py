"""One wait: everything that waits takes a `Deadline` and passes the same one down."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlx.errors import UsageError


class Deadline:
    """A point in time, `seconds` from its making, by a monotonic clock.

    The time that a user gives to a call is the time that the call takes, however many waits it is
    made of, because all of them share this one object. Safe to read from several threads.
    """

    __slots__ = ("_clock", "_end", "_start", "seconds")

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 <= seconds < float("inf"):
            raise UsageError(f"a deadline is a finite number of seconds >= 0; got {seconds!r}")
        self.seconds = float(seconds)
        self._clock = clock
        self._start = clock()
        self._end = self._start + self.seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - self._clock())

    def elapsed(self) -> float:
        """Seconds since the deadline was set."""
        return self._clock() - self._start

    def expired(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end

    def __repr__(self) -> str:
        return f"Deadline({self.seconds:g} s, {self.remaining():.3g} s left)"
