"""The launcher's side of what its ranks print: the pipes that they inherit, and where they lead."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from rlx.job.relay import Relay, Sink
from rlx.job.voice import PROGRESS_VARIABLE, RESULT_VARIABLE

_DUMB_TERMINALS = ("dumb", "unknown")


@dataclass(frozen=True)
class Files:
    """The writing ends that a rank gets; `inherited` are those beside its standard ones, by the
    variable that tells it their number."""

    stdout: int
    stderr: int
    inherited: Mapping[str, int]


class Output:
    """Standard output and error of this process, as its ranks share them.

    On a terminal rank 0 draws a progress bar, for which it gets the terminal itself; everything
    else goes through the relay.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._has_bar = os.isatty(2) and environ.get("TERM") not in _DUMB_TERMINALS
        self._stdout = Sink(1, has_bar=self._has_bar and os.isatty(1))
        self._stderr = Sink(2, has_bar=self._has_bar)
        sys.stdout.flush()
        self._relay = Relay()

    @property
    def error(self) -> OSError | None:
        """Why something could not be written, if so."""
        return self._stdout.error or self._stderr.error

    def files(self, rank: int, ours: ExitStack) -> Files:
        """The files of one rank; `ours` closes this process's ends of them."""
        mark = f"[rank {rank}] "
        inherited = {}
        if rank == 0:
            inherited[RESULT_VARIABLE] = self._leading_to(self._stdout, "", ours, is_kept=True)
            inherited[PROGRESS_VARIABLE] = (
                _copy(2, ours) if self._has_bar else self._leading_to(self._stderr, "", ours)
            )
        stdout, stderr = (
            self._leading_to(sink, mark, ours) for sink in (self._stdout, self._stderr)
        )
        return Files(stdout, stderr, inherited)

    def finish(self, seconds: float) -> bool:
        """Show what the ranks, which have ended, have printed. Whether all of it is out within
        `seconds`; whoever reads this process's output may take longer. May be called again."""
        if not self._relay.finish(seconds):
            return False
        self._stderr.restore()
        return True

    def _leading_to(self, sink: Sink, mark: str, ours: ExitStack, *, is_kept: bool = False) -> int:
        reading, writing = pipe(ours)
        self._relay.add(reading, mark, sink, is_kept=is_kept)
        return writing


def pipe(ours: ExitStack) -> tuple[int, int]:
    """A pipe's two ends; `ours` closes the writing one."""
    reading, writing = os.pipe()
    ours.callback(os.close, writing)
    return reading, writing


def _copy(fd: int, ours: ExitStack) -> int:
    copied = os.dup(fd)
    ours.callback(os.close, copied)
    return copied


def say(text: str) -> None:
    """Write to standard error at the end of a launch. Where nobody reads it any more, nobody is
    left to tell of that."""
    Sink(2).write(text.encode(errors="backslashreplace"))
