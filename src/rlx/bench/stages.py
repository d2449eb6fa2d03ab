"""Where measuring happens: in worlds that are started for it, or among the ranks that we are.

Both forms answer in the same terms, so that the rounds are the same: the seconds of each call on
its slowest rank.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import numpy as np

from rlx.bench.calls import Subject, time_collective, time_link
from rlx.bench.contenders import worlds_of
from rlx.bench.worlds import World, WorldLost
from rlx.errors import RlxError
from rlx.group import ProcessGroup


class ContenderLost(RlxError):
    """A contender cannot be measured any further; the others can."""


class Stage(Protocol):
    """Contenders that are there, and how to have them measured."""

    ranks: int
    about: dict[str, str]  # each contender that started, and its library's version where it has one
    lost: dict[str, str]  # those that did not start or have failed, and why

    def collective(
        self, contender: str, call: str, size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        """Seconds of each call, on its slowest rank. Raises `ContenderLost`."""

    def link(
        self, contender: str, pair: tuple[int, int], size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        """Seconds of round trips from the first rank of a pair to the second, one float back.
        Raises `ContenderLost`."""

    def elapsed_s(self) -> float:
        """Seconds since the measuring began; the same on every rank that asks."""


class StartedWorlds:
    """Worlds started from this process. Used as a context, whose end stops all of them."""

    def __init__(self, names: Sequence[str], ranks: int, environ: Mapping[str, str]) -> None:
        self.ranks = ranks
        self.about: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self._names = names
        self._environ = environ
        self._worlds: dict[str, World] = {}
        self._stack = contextlib.ExitStack()
        self._begun = 0.0

    def __enter__(self) -> StartedWorlds:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals_end_in_order())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlx-bench-")))
            for kind, members in worlds_of(self._names).items():
                self._start(kind, members, folder, stack)
            self._stack = stack.pop_all()
        self._begun = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def world_of(self, contender: str) -> World:
        """The world that a contender lives in, once it has started."""
        return self._worlds[contender]

    def collective(
        self, contender: str, call: str, size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        told = {"do": "collective", "contender": contender, "call": call, "bytes": size_bytes}
        with self._losing(contender):
            answers = self._worlds[contender].ask_all(
                {**told, "warm_ups": warm_ups, "repeats": repeats}
            )
        return [max(call_seconds) for call_seconds in zip(*_seconds(answers), strict=True)]

    def link(
        self, contender: str, pair: tuple[int, int], size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        told = {"do": "link", "contender": contender, "bytes": size_bytes}
        told |= {"warm_ups": warm_ups, "repeats": repeats}
        first, second = pair
        with self._losing(contender):
            answers = self._worlds[contender].ask(
                {
                    first: {**told, "peer": second, "leads": True},
                    second: {**told, "peer": first, "leads": False},
                }
            )
        return _seconds(answers)[0]

    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _start(
        self, kind: str, members: list[str], folder: Path, stack: contextlib.ExitStack
    ) -> None:
        try:
            world = World.start(kind, members, self.ranks, folder, self._environ)
        except WorldLost as error:
            self.lost |= dict.fromkeys(members, str(error))
            return
        stack.callback(world.close)
        self._worlds |= dict.fromkeys(members, world)
        self.about |= dict.fromkeys(members, world.about)

    @contextlib.contextmanager
    def _losing(self, contender: str) -> Iterator[None]:
        try:
            yield
        except WorldLost as error:
            for name, world in self._worlds.items():
                if world is self._worlds[contender]:
                    self.lost[name] = str(error)
            raise ContenderLost(f"{contender}: {error}") from error


class OwnRanks:
    """The ranks of a group that a launcher started; all of them make the same calls here."""

    def __init__(self, group: ProcessGroup, subjects: Mapping[str, Subject], about: str) -> None:
        self.ranks = group.world_size
        self.about = dict.fromkeys(subjects, about)
        self.lost: dict[str, str] = {}
        self._group = group
        self._subjects = subjects
        self._begun = time.monotonic()

    def collective(
        self, contender: str, call: str, size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        own = time_collective(self._subjects[contender], call, size_bytes, warm_ups, repeats)
        return self._agreed(own)

    def link(
        self, contender: str, pair: tuple[int, int], size_bytes: int, warm_ups: int, repeats: int
    ) -> list[float]:
        own: list[float] = []
        if self._group.rank in pair:
            first, second = pair
            leads = self._group.rank == first
            peer = second if leads else first
            subject = self._subjects[contender]
            own = time_link(subject, peer, leads, size_bytes, warm_ups, repeats)
        return self._agreed(own or [0.0] * repeats)

    def elapsed_s(self) -> float:
        return self._agreed([time.monotonic() - self._begun])[0]

    def _agreed(self, own: list[float]) -> list[float]:
        slowest = self._group.all_reduce(np.array(own, np.float64), "max")
        return [float(value) for value in slowest]


def _seconds(answers: Sequence[Mapping[str, list[float]]]) -> list[list[float]]:
    return [answer["seconds"] for answer in answers]


@contextlib.contextmanager
def _signals_end_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind this process as Ctrl-C does, so that what it started is stopped."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, unwind) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
