"""Is anything left open? Threads, descriptors and child processes of this process, by /proc."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 5.0


@contextlib.contextmanager
def nothing_left_open(*, grace_s: float = GRACE_S) -> Iterator[None]:
    """What is opened inside is closed at the end, or within `grace_s` after it.

    Raises
    ------
    AssertionError
        A thread, a descriptor (a socket, a file, a pipe) or a child process is still there; the
        message lists them. Nothing is checked where the inside raises an error of its own.
    """
    before = _open_things()
    yield
    end = time.monotonic() + grace_s
    while left := _open_things() - before:
        if time.monotonic() > end:
            raise AssertionError(f"left open: {', '.join(sorted(left))}")
        time.sleep(0.01)


def _open_things() -> set[str]:
    threads = {f"thread {one.name} ({one.native_id})" for one in threading.enumerate()}
    return threads | _descriptors() | _children()


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found.add(f"descriptor {name} ({os.readlink(f'/proc/self/fd/{name}')})")
    return found


def _children() -> set[str]:
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        # A thread may end between the listing and the reading.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {f"process {pid}" for pid in path.read_text().split()}
    return found
