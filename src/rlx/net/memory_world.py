"""What the threads of one memory mesh share: mailboxes, who sleeps, and why the job ended."""

from __future__ import annotations

import threading
from collections import deque

from rlx.net.crossovers import COPY_BYTES
from rlx.net.frames import byte_view, content_bytes
from rlx.net.memory_heap import Lent
from rlx.net.notices import Notice
from rlx.net.transport import Outgoing

_LONGEST_WAIT_S = 3600.0
"""One wait for a lock: its clock overflows at deadlines that a user may well give (1e10 s)."""


class Message:
    """A message on its way: a copy of a small one, or the pieces of the sender's memory.

    `taken` means that its receiver reads it at this moment, `done` that its sender need not wait.
    """

    __slots__ = ("content", "done", "pieces", "sender", "size", "stamp", "taken")

    def __init__(self, sender: int, message: Outgoing) -> None:
        buffers = message.buffers
        size = content_bytes(buffers)
        self.sender = sender
        self.stamp = message.stamp
        self.size = size
        self.taken = False
        self.done = size <= COPY_BYTES
        self.content = b""
        self.pieces: list[memoryview] = []
        if not self.done:
            self.pieces = [view for view in map(byte_view, buffers) if len(view)]
        elif len(buffers) == 1 and type(buffers[0]) is bytes:
            self.content = buffers[0]  # nobody changes it
        elif size:
            self.content = b"".join(buffers)

    def fits(self, stamp: bytes, size: int) -> bool:
        """Whether this is a copy of just what a slot expects."""
        return self.done and self.stamp == stamp and self.size == size

    def copy_to(self, target: memoryview) -> None:
        if self.done:
            target[:] = self.content
            return
        place = 0
        for piece in self.pieces:
            target[place : place + len(piece)] = piece
            place += len(piece)


class World:
    """What the ranks of one mesh share: the first failure, who has left, and a mailbox for each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.mail: list[dict[tuple[int, int], deque[Message]]] = [{} for _ in range(size)]
        # A thread that waits leaves a locked lock here, and sleeps until somebody unlocks it. It
        # costs a third of a Condition, of which a small collective would have two a rank.
        self.sleepers: list[list[threading.Lock]] = [[] for _ in range(size)]
        self.failure: Notice | None = None
        self.left = [False] * size
        self.lent = Lent()

    def post(self, peer: int, tag: int, message: Message) -> None:
        """Put a message into a peer's mailbox. Called under the lock."""
        key, mail = (message.sender, tag), self.mail[peer]
        if key in mail:
            mail[key].append(message)
        else:
            mail[key] = deque((message,))
        if self.sleepers[peer]:
            self.wake(peer)

    def wake(self, rank: int) -> None:
        """Wake every thread of a rank that waits."""
        sleepers = self.sleepers[rank]
        if sleepers:
            self.sleepers[rank] = []
            for sleeper in sleepers:
                sleeper.release()

    def wake_all(self) -> None:
        for rank in range(self.size):
            self.wake(rank)

    def fail(self, notice: Notice) -> None:
        """Record why the job ends; the first reason stays."""
        with self.lock:
            if self.failure is None:
                self.failure = notice
            self.wake_all()

    def sleep(self, rank: int, sleeper: threading.Lock, seconds: float) -> None:
        """Sleep until `sleeper`, which is in `sleepers`, is unlocked, at most so long."""
        woken = False
        try:
            woken = sleeper.acquire(timeout=min(seconds, _LONGEST_WAIT_S))
        finally:
            if not woken:  # who wakes a thread takes its lock off the list
                with self.lock:
                    if sleeper in self.sleepers[rank]:
                        self.sleepers[rank].remove(sleeper)

    def lie_down(self, rank: int) -> threading.Lock:
        """A lock to sleep on. Called under the world's lock, where nothing is there to be done."""
        sleeper = threading.Lock()
        sleeper.acquire()
        self.sleepers[rank].append(sleeper)
        return sleeper
