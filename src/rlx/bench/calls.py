"""What is measured: the collectives, their sizes, and how a call is timed. The same for all."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

ALL_REDUCE = "all_reduce"
BARRIER = "barrier"
CALLS = (ALL_REDUCE, "broadcast", "all_gather", "reduce_scatter", BARRIER)
"""All move float32. `all_reduce` is a sum in place, and `reduce_scatter` a sum."""

RUNS_AHEAD = frozenset({"broadcast"})
"""A root may be done before the others have begun, and the next call would then hide the wait: a
barrier, which is not timed, comes before each of these."""

SIZES_BYTES = (4, 4 << 10, 256 << 10, 4 << 20, 64 << 20)
ITEM_BYTES = 4

Move: TypeAlias = Callable[[], object]
"""One call on buffers that are there already."""


class Subject(Protocol):
    """One rank's side of what is measured: rlx on some transport, or another library."""

    def collective(self, call: str, size_bytes: int) -> Move:
        """Make the buffers of `call`, and return what makes one call on them.

        `size_bytes` is that of the whole vector: of the result of `all_gather`, of the input of
        `reduce_scatter`; each of N ranks then has an N-th of it, and at least one element.
        """

    def sender(self, peer: int, size_bytes: int) -> Move:
        """Make a message, and return what sends it to `peer`."""

    def receiver(self, peer: int, size_bytes: int) -> Move:
        """Make a buffer, and return what fills it with the next message of `peer`."""

    def close(self) -> None:
        """Leave; every rank does."""


def part_items(size_bytes: int, ranks: int) -> int:
    """The float32 elements that each rank has of a vector of which it has an N-th."""
    return max(1, size_bytes // ITEM_BYTES // ranks)


def items(size_bytes: int) -> int:
    """The float32 elements of a vector."""
    return max(1, size_bytes // ITEM_BYTES)


def whole_bytes(call: str, size_bytes: int, ranks: int) -> int:
    """The size of the vector that is really moved where `size_bytes` is asked for."""
    if call == BARRIER:
        return 0
    if call in ("all_gather", "reduce_scatter"):
        return part_items(size_bytes, ranks) * ranks * ITEM_BYTES
    return items(size_bytes) * ITEM_BYTES


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from stopping a call: it is no part of what is compared."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def time_calls(move: Move, repeats: int, before: Move | None = None) -> list[float]:
    """Seconds of each of `repeats` calls, one straight after the other."""
    clock = time.perf_counter
    seconds = [0.0] * repeats
    with no_collection():
        for number in range(repeats):
            if before is not None:
                before()
            begun = clock()
            move()
            seconds[number] = clock() - begun
    return seconds


def time_collective(
    subject: Subject, call: str, size_bytes: int, warm_ups: int, repeats: int
) -> list[float]:
    """Seconds of each call on this rank; those of the warm-up are made first and not counted."""
    move = subject.collective(call, size_bytes)
    before = subject.collective(BARRIER, 0) if call in RUNS_AHEAD else None
    time_calls(move, warm_ups, before)
    return time_calls(move, repeats, before)


def time_link(
    subject: Subject, peer: int, leads: bool, forth_bytes: int, warm_ups: int, repeats: int
) -> list[float]:
    """Seconds of round trips with `peer`: `forth_bytes` forth, one float back; as the leader sees
    them. The other side gets an empty list."""
    forth, back = max(forth_bytes, ITEM_BYTES), ITEM_BYTES
    if leads:
        send, receive = subject.sender(peer, forth), subject.receiver(peer, back)
    else:
        send, receive = subject.sender(peer, back), subject.receiver(peer, forth)

    def lead() -> None:
        send()
        receive()

    def answer() -> None:
        receive()
        send()

    if leads:
        time_calls(lead, warm_ups)
        return time_calls(lead, repeats)
    time_calls(answer, warm_ups + repeats)
    return []


class Kept:
    """Moves that are made once: the buffers of a size stay, as a program's would."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._moves: dict[tuple[Any, ...], Move] = {}

    def collective(self, call: str, size_bytes: int) -> Move:
        return self._kept("collective", call, size_bytes)

    def sender(self, peer: int, size_bytes: int) -> Move:
        return self._kept("sender", peer, size_bytes)

    def receiver(self, peer: int, size_bytes: int) -> Move:
        return self._kept("receiver", peer, size_bytes)

    def close(self) -> None:
        self._moves.clear()
        self._subject.close()

    def _kept(self, method: str, *key: Any) -> Move:
        place = (method, *key)
        if place not in self._moves:
            self._moves[place] = getattr(self._subject, method)(*key)
        return self._moves[place]
