"""Every law holds for the memory and TCP forms, and a transport that breaks it fails it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import pytest

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError
from rlx.net import Deadline, Incoming, MemoryTransport, MessageMismatch, NetTransport, Outgoing
from rlx.testing import make_mesh, run_on_mesh
from rlx.testing.laws import LAWS, TAG, dying, huge_message


@pytest.mark.parametrize("kind", ["memory", "tcp"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("text", LAWS)
def test_the_law_holds(text, kind, world_size):
    one = LAWS[text]
    if world_size >= one.least_ranks:
        run_on_mesh(make_mesh(kind, world_size), one.body)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_rank_that_died_is_named(world_size):
    run_on_mesh(
        MemoryTransport.mesh(world_size),
        lambda transport: dying(transport, lambda one: one.vanish()),
    )


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if "MemAvailable" in line)


@pytest.mark.skipif(available_bytes() < 6 << 30, reason="needs 6 GiB of memory for 2 GiB twice")
@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_a_message_over_two_gibibytes_arrives_whole(kind):
    run_on_mesh(make_mesh(kind, 2), huge_message)


class Broken(NetTransport):
    """A transport that is right in everything but what a subclass breaks."""

    def __init__(self, whole: NetTransport) -> None:
        self._whole = whole

    @property
    def rank(self) -> int:
        return self._whole.rank

    @property
    def world_size(self) -> int:
        return self._whole.world_size

    def exchange(
        self, sends: Sequence[Outgoing], receives: Sequence[Incoming], *, deadline: Deadline
    ) -> None:
        self._whole.exchange(sends, receives, deadline=deadline)

    def abort(self, reason: str | BaseException) -> None:
        self._whole.abort(reason)

    def close(self) -> None:
        self._whole.close()


class Reorders(Broken):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(list(sends)[::-1], receives, deadline=deadline)


class SendsBeforeItReceives(Broken):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(sends, (), deadline=deadline)
        self._whole.exchange((), receives, deadline=deadline)


class DropsMessagesToItself(Broken):
    def exchange(self, sends, receives, *, deadline):
        others = [one for one in sends if one.peer != self.rank]
        self._whole.exchange(others, receives, deadline=deadline)


class HidesMismatches(Broken):
    def exchange(self, sends, receives, *, deadline):
        with contextlib.suppress(MessageMismatch):
            self._whole.exchange(sends, receives, deadline=deadline)


class DeliversWrongSizes(Broken):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except MessageMismatch:
            for slot in receives:
                slot.buffer[:1] = b"?"
            raise


class ReturnsWhenTimeIsUp(Broken):
    def exchange(self, sends, receives, *, deadline):
        with contextlib.suppress(DeadlineExceeded):
            self._whole.exchange(sends, receives, deadline=deadline)


class BlamesItsNeighbour(Broken):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except PeerLost as error:
            raise PeerLost((error.rank + 1) % self.world_size, str(error)) from error


class ForgetsTheReason(Broken):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except RemoteError as error:
            raise RemoteError(error.rank, "Abort", "something") from error


class ReadsItsBuffersLate(Broken):
    """Rank 0 returns once its own slots are filled, and sends what its buffers hold by then."""

    def exchange(self, sends, receives, *, deadline):
        if self.rank or not any(one.tag == TAG for one in sends):
            self._whole.exchange(sends, receives, deadline=deadline)
            return
        later = threading.Timer(0.2, self._send, (sends,))
        self._whole.exchange((), receives, deadline=deadline)
        later.start()

    def _send(self, sends):
        with contextlib.suppress(ClosedError):
            self._whole.exchange(sends, (), deadline=Deadline(1))


class MixesTags(Broken):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(
            [Outgoing(one.peer, TAG, one.stamp, one.buffers) for one in sends],
            [Incoming(one.peer, TAG, one.stamp, one.buffer) for one in receives],
            deadline=deadline,
        )


class NeverCloses(Broken):
    def exchange(self, sends, receives, *, deadline):
        return None if self._closed_once() else super().exchange(sends, receives, deadline=deadline)

    def _closed_once(self) -> bool:
        return getattr(self, "_closed", False)

    def close(self) -> None:
        self._closed = True


BREAKS: dict[str, list[Callable[[NetTransport], NetTransport]]] = {
    "messages under one tag arrive in order, and other tags are not held up by them": [Reorders],
    "an exchange of any sizes, in both directions at once, between any ranks, ends": [
        SendsBeforeItReceives
    ],
    "a message to oneself works, and an empty one": [DropsMessagesToItself],
    "a message of another stamp or size raises, and nothing is truncated or reinterpreted": [
        HidesMismatches,
        DeliversWrongSizes,
    ],
    "a wait without its peer ends, and names the peer": [ReturnsWhenTimeIsUp],
    "after an exchange the send buffers are the caller's, and the slots are whole": [
        ReadsItsBuffersLate
    ],
    "threads may use one transport at once on different tags": [MixesTags],
    "close may be called twice, what was sent before still arrives, and use after it is an error": [
        NeverCloses
    ],
    "an early leave is named as that": [BlamesItsNeighbour],
    "when a rank aborts, the others raise its reason with its rank": [ForgetsTheReason],
}


def test_every_law_has_its_counter_test():
    assert set(BREAKS) == set(LAWS)


@pytest.mark.parametrize(
    ("text", "broken"), [(text, one) for text, breaks in BREAKS.items() for one in breaks]
)
def test_a_transport_that_breaks_the_law_fails_it(text, broken):
    def body(transport):
        LAWS[text].body(transport, deadline_s=1.0)

    with pytest.raises((AssertionError, DeadlineExceeded, MessageMismatch, TimeoutError)):
        run_on_mesh([broken(one) for one in MemoryTransport.mesh(3)], body, watchdog_s=15)


def test_a_transport_that_blames_the_wrong_rank_for_a_death_fails():
    def body(transport):
        dying(transport, lambda one: one._whole.vanish(), deadline_s=2.0)

    with pytest.raises(AssertionError, match="is blamed; rank 2 died"):
        run_on_mesh([BlamesItsNeighbour(one) for one in MemoryTransport.mesh(3)], body)
