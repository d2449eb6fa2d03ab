"""What the ranks of the soak do: collectives whose results have a closed form."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections.abc import Callable

import numpy as np

from rlx.group import ProcessGroup

_COUNTS = (1, 7, 500, 1100, 3000, 20_000)
_BARRIERS = 150
_ROUND_OF_FAULT = 5


class WrongResult(AssertionError):
    """A collective returned what it should not."""


def work(group: ProcessGroup, seed: int, stop: Callable[[], bool]) -> int:
    """Collectives until rank 0's `stop` says so; how many there were.

    Raises
    ------
    WrongResult
        One of them returned other bits than its closed form has.
    """
    source = random.Random(seed)
    rounds = 0
    while True:
        rounds += 1
        source.choice(_CALLS)(group, source.choice(_COUNTS), rounds)
        flag = np.array([group.rank == 0 and stop()])
        if group.broadcast(flag, root=0)[0]:
            return rounds


def barriers(group: ProcessGroup) -> int:
    """Calls whose messages have no content, so that every byte on a link is of rlx's framing."""
    for _ in range(_BARRIERS):
        group.barrier()
    return _BARRIERS


def _check(right: bool, what: str) -> None:
    if not right:
        raise WrongResult(what)


def _sum_of_integers(group: ProcessGroup, count: int, number: int) -> None:
    size = group.world_size
    got = group.all_reduce(np.arange(count, dtype=np.int64) * (group.rank + 1) + number)
    right = np.arange(count, dtype=np.int64) * (size * (size + 1) // 2) + size * number
    _check(np.array_equal(got, right), f"all_reduce of {count} int64")


def _sum_of_floats(group: ProcessGroup, count: int, number: int) -> None:
    """Small integers, which float32 adds exactly in any order."""
    size = group.world_size
    own = (np.arange(count) % 1000 + group.rank + number % 100).astype(np.float32)
    right = (np.arange(count) % 1000 * size + size * (size - 1) // 2 + number % 100 * size).astype(
        np.float32
    )
    got = group.all_reduce(own)
    _check(got.tobytes() == right.tobytes(), f"all_reduce of {count} float32")


def _copy(group: ProcessGroup, count: int, number: int) -> None:
    root = number % group.world_size
    array = np.arange(count, dtype=np.int32) + (number if group.rank == root else -1)
    got = group.broadcast(array, root=root)
    _check(np.array_equal(got, np.arange(count) + number), f"broadcast of {count} int32")


def _gathering(group: ProcessGroup, count: int, number: int) -> None:
    got = group.all_gather(np.full(count, group.rank * 1000 + number, np.int32))
    for rank in range(group.world_size):
        right = np.array_equal(np.ravel(got[rank]), np.full(count, rank * 1000 + number))
        _check(right, f"all_gather of {count} int32")


_CALLS = (_sum_of_integers, _sum_of_integers, _sum_of_floats, _copy, _gathering)


def end_in_the_middle(group: ProcessGroup, seed: int, victim: int, how: str) -> int:
    """For ranks that are processes: work until something, or the victim itself, ends it."""
    source = random.Random(seed)
    rounds = 0
    while True:
        rounds += 1
        if rounds == _ROUND_OF_FAULT:
            _say("inside")
        if rounds > _ROUND_OF_FAULT + seed % 7 and group.rank == victim and how != "wait":
            return _end(how)
        source.choice(_CALLS)(group, source.choice(_COUNTS), rounds)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _end(how: str) -> int:
    """End this process's part in its own way, and say when."""
    _say(repr(time.monotonic()))
    match how:
        case "crash":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "raise":
            raise ValueError("a fault by plan")
    return 0
