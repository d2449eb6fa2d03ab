"""What ranks print, passed on by one thread in whole lines, each marked with its rank.

The ranks write to pipes, and nobody but this thread writes to the launcher's own output, so that
lines of two ranks cannot mix. What one rank writes without a pause stays together, and so does a
traceback, up to a limit. Bytes pass as they are: text that is not UTF-8 is nobody's error here.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import selectors
import termios
import threading
import time
from dataclasses import dataclass, field

LINE_LIMIT_BYTES = 1 << 20
"""A longer line is cut into lines of this length, so that a rank cannot fill our memory."""

_READ_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 16  # whole lines of this size are shown without waiting for a pause
_POLL_S = 0.02
_PAUSE_S = 0.05
_AGE_S = 0.3  # nothing waits longer than this for a pause, but for the rest of a traceback
_TRACEBACK_S = 1.0
_TRACEBACK = b"Traceback (most recent call last):\n"
_ERASE_LINE = b"\r\x1b[K"
_SHOW_CURSOR = b"\x1b[?25h"


class Sink:
    """An open file of this process, written to by one thread. The first error ends the writing.

    `has_bar` says that a rank draws a progress bar on the same terminal: it is erased before each
    write, and its owner draws it again below.
    """

    def __init__(self, fd: int, *, has_bar: bool = False) -> None:
        self.error: OSError | None = None
        self._fd = fd
        self._has_bar = has_bar

    def write(self, data: bytes) -> None:
        """All of `data`, or nothing more if an earlier write failed."""
        rest = memoryview(_ERASE_LINE + data if self._has_bar else data)
        while rest and self.error is None:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
            except OSError as error:
                self.error = error

    def restore(self) -> None:
        """Leave the terminal usable after a bar whose owner may have been killed."""
        if self._has_bar:
            self.write(_SHOW_CURSOR)


@dataclass(eq=False)
class _Source:
    """The reading end of one rank's pipe, and what of it is not shown yet."""

    fd: int
    mark: bytes
    sink: Sink
    is_kept: bool  # until the end, to be the last that is printed
    held: bytearray = field(default_factory=bytearray)
    begun: float = 0.0  # when the oldest byte of `held` came
    read: float = 0.0  # when the newest came

    def show(self, size: int) -> None:
        """Pass on the first `size` held bytes as marked lines."""
        if not size:
            return
        lines = bytes(self.held[:size]).removesuffix(b"\n")
        del self.held[:size]
        self.begun = self.read
        self.sink.write(self.mark + lines.replace(b"\n", b"\n" + self.mark) + b"\n")


class Relay:
    """The thread that passes on what ranks print. `finish` ends it and may be called twice."""

    def __init__(self) -> None:
        self._new: list[_Source] = []
        self._sources: list[_Source] = []
        self._selector = selectors.DefaultSelector()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlx-output", daemon=True)
        self._thread.start()

    def add(self, fd: int, mark: str, sink: Sink, *, is_kept: bool = False) -> None:
        """Read the pipe `fd` to its end, and close it. Lines go to `sink`, each with `mark` before.

        What is kept is shown after all else, and held whole until then.
        """
        self._new.append(_Source(fd, mark.encode(), sink, is_kept))

    def finish(self, seconds: float) -> bool:
        """Show the rest. For when the ranks have ended: their last words are then in the pipes.

        What a child that a rank left behind writes from now on is not read. The writing takes as
        long as whoever reads it; returns whether it is done after `seconds`. May be called again.
        """
        self._is_ending.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            self._take_new()
            for key, _ in self._selector.select(_POLL_S):
                self._read(key.data, _READ_BYTES)
            for source in self._sources:
                if not source.is_kept:
                    source.show(due(source, time.monotonic()))
        self._take_new()
        for key in list(self._selector.get_map().values()):
            self._read(key.data, _waiting_bytes(key.fd))
        self._show_rest()

    def _take_new(self) -> None:
        while self._new:
            source = self._new.pop(0)
            self._sources.append(source)
            self._selector.register(source.fd, selectors.EVENT_READ, source)

    def _read(self, source: _Source, size: int) -> None:
        data = os.read(source.fd, size) if size else b""
        if not data:
            self._drop(source)
            return
        source.read = time.monotonic()
        source.begun = source.begun if source.held else source.read
        source.held += data

    def _drop(self, source: _Source) -> None:
        self._selector.unregister(source.fd)
        os.close(source.fd)
        if not source.is_kept:
            self._sources.remove(source)
            source.show(len(source.held))

    def _show_rest(self) -> None:
        for source in sorted(self._sources, key=lambda one: one.is_kept):
            source.show(len(source.held))
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()


def _waiting_bytes(fd: int) -> int:
    """How much lies in a pipe."""
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return size[0]


def due(source: _Source, now: float) -> int:
    """How many held bytes are to be shown now: whole lines, and no traceback without its end."""
    held, paused_s = source.held, now - source.read
    end = held.rfind(b"\n") + 1
    if len(held) >= LINE_LIMIT_BYTES:
        return end or LINE_LIMIT_BYTES
    if not end or paused_s >= _TRACEBACK_S:
        return end
    if paused_s < _PAUSE_S and now - source.begun < _AGE_S and end < _BLOCK_BYTES:
        return 0
    return _before_open_traceback(held, end)


def _before_open_traceback(held: bytearray, end: int) -> int:
    """`end`, or where a traceback begins whose last line, the one of the error, is still to come.

    Below its header all lines are indented but that one.
    """
    header = held.rfind(_TRACEBACK, 0, end)
    if header < 0:
        return end
    below = held[header + len(_TRACEBACK) : end].split(b"\n")
    if any(line and not line.startswith(b" ") for line in below):
        return end
    return held.rfind(b"\n", 0, header) + 1
