"""What the laws are written with: their registry, recognisable contents, and expected errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rlx.net import FIRST_USER_TAG, Deadline, Incoming, NetTransport, Outgoing

TAG = FIRST_USER_TAG
STAMP = b"law"
MEETING_TAG = TAG + 900

E = TypeVar("E", bound=BaseException)


class Body(Protocol):
    """What every rank runs; `deadline_s` bounds each of its waits."""

    def __call__(self, transport: NetTransport, *, deadline_s: float = 20.0) -> None: ...


@dataclass(frozen=True)
class Law:
    """A law: its body, and the least number of ranks with which it says anything."""

    body: Body
    least_ranks: int


class Laws(dict[str, Law]):
    """Laws by the sentence that each of them checks."""

    def add(self, text: str, least_ranks: int = 1) -> Callable[[Body], Body]:
        """A decorator that adds a body under its sentence."""

        def register(body: Body) -> Body:
            self[text] = Law(body, least_ranks)
            return body

        return register


def content(source: int, target: int, size: int) -> bytes:
    """Bytes that tell who sent them to whom, and where one of them has gone astray."""
    pattern = bytes((source * 31 + target * 17 + place * 7) % 251 for place in range(251))
    return (pattern * (size // 251 + 1))[:size]


def right_of(transport: NetTransport) -> int:
    """The next rank of the ring."""
    return (transport.rank + 1) % transport.world_size


def left_of(transport: NetTransport) -> int:
    """The previous rank of the ring."""
    return (transport.rank - 1) % transport.world_size


def send_one(
    transport: NetTransport, peer: int, data: bytes | bytearray, seconds: float, tag: int = TAG
) -> None:
    """An exchange of one outgoing message."""
    transport.exchange([Outgoing(peer, tag, STAMP, (data,))], (), deadline=Deadline(seconds))


def receive_one(
    transport: NetTransport, peer: int, slot: bytearray, seconds: float, tag: int = TAG
) -> None:
    """An exchange of one slot."""
    transport.exchange((), [Incoming(peer, tag, STAMP, slot)], deadline=Deadline(seconds))


def meet(transport: NetTransport, deadline_s: float, tag: int = MEETING_TAG) -> None:
    """One empty message between every two ranks: nobody returns before all have come."""
    everyone = range(transport.world_size)
    transport.exchange(
        [Outgoing(peer, tag, b"meet") for peer in everyone],
        [Incoming(peer, tag, b"meet") for peer in everyone],
        deadline=Deadline(deadline_s),
    )


def raised(kind: type[E], action: Callable[[], object], otherwise: str) -> E:
    """The error of that kind that `action` raises; where it raises none, `otherwise` is wrong."""
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(otherwise)


class Beside:
    """Actions in threads of their own, beside this one. Their errors come out of `join`."""

    def __init__(self, actions: Sequence[Callable[[], object]]) -> None:
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(action,), daemon=True) for action in actions
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:  # a thread's outermost edge
            self._failures.append(error)

    def join(self, seconds: float) -> None:
        """Wait for all of them; raise what the first to fail raised."""
        deadline = Deadline(seconds)
        for thread in self._threads:
            thread.join(deadline.remaining())
        if self._failures:
            raise self._failures[0]
        waiting = sum(thread.is_alive() for thread in self._threads)
        assert not waiting, f"{waiting} threads still wait after {seconds} s"
