"""What the ranks of the fault tests run, each in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

import numpy as np

from rlx.errors import RemoteError, RlxError


def say(word):
    print(word, flush=True)


def used_s():
    times = os.times()
    return times.user + times.system


def barriers(group):
    """Meet until something ends it."""
    group.barrier()
    say("inside")
    while True:
        group.barrier()


def ending(group, victim, how):
    """Meet, until rank `victim` ends in its own way in the middle."""
    for number in range(50):
        group.barrier()
        if group.rank == victim and number == 20:
            say("inside")
            end(how)
    say("inside")
    while True:
        group.barrier()


def end(how):
    match how:
        case "crash":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            os._exit(7)
        case "leave":
            sys.exit(0)
        case "raise":
            raise ValueError("bad lr")


def return_early(group, victim):
    """Rank `victim` returns while the others still expect it."""
    for _ in range(5):
        group.barrier()
    if group.rank == victim:
        return "done"
    while True:
        group.barrier()


def all_reduces(group):
    """All-reduces of 16 MiB until one fails; what the wait in that one cost."""
    array = np.ones(1 << 22, np.float32)
    group.all_reduce(array)
    say("inside")
    while True:
        begun_s, used = time.monotonic(), used_s()
        try:
            total = group.all_reduce(array)
        except RlxError as error:
            waited_s = time.monotonic() - begun_s
            say(json.dumps({"waited_s": waited_s, "busy": (used_s() - used) / waited_s}))
            raise error
        assert (total == group.world_size).all()


def skip_a_call(group, absent, number):
    """Rank `absent` does not come to call `number`."""
    for _ in range(number - 1):
        group.barrier()
    if group.rank == absent:
        time.sleep(30)
    group.barrier()
    return "met"


def tell_the_traceback(group, victim):
    """What the others hear of the victim's exception."""
    if group.rank == victim:
        raise ValueError("bad lr")
    try:
        group.barrier()
    except RemoteError as error:
        return error.traceback
    return None


def right_sums(group, calls):
    """How many of so many sums, of small and of large arrays, are those of the closed form."""
    right, size = 0, group.world_size
    for number in range(calls):
        count = 20_000 if number % 3 == 0 else 10
        total = group.all_reduce(np.arange(count, dtype=np.int64) * (group.rank + 1) + number)
        expected = np.arange(count) * (size * (size + 1) // 2) + number * size
        right += int((total == expected).all())
    return right
