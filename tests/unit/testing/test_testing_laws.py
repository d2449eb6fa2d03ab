"""A transport that breaks a law fails it. That the real forms pass is shown in tests/ranked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import pytest

from rlx.errors import ClosedError, DeadlineExceeded, PeerLost, RemoteError
from rlx.net import Deadline, Incoming, MemoryTransport, MessageMismatch, NetTransport, Outgoing
from rlx.testing import make_mesh, run_on_mesh
from rlx.testing.law_kit import TAG
from rlx.testing.laws import LAWS, dying, huge_message


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if "MemAvailable" in line)


@pytest.mark.skipif(available_bytes() < 6 << 30, reason="needs 6 GiB of memory for 2 GiB twice")
@pytest.mark.parametrize("kind", ["memory", "tcp", "sockets"])
def test_a_message_over_two_gibibytes_arrives_whole(kind):
    run_on_mesh(make_mesh(kind, 2), huge_message)


class Wrapped(NetTransport):
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

    def _later(self, sends, receives, after_s: float) -> None:
        """Do behind the caller's back what should be done by now, or not at all."""

        def act():
            with contextlib.suppress(ClosedError, DeadlineExceeded, PeerLost, RemoteError):
                self._whole.exchange(sends, receives, deadline=Deadline(1))

        threading.Timer(after_s, act).start()


class Reorders(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(list(sends)[::-1], receives, deadline=deadline)


class TakesOneCallAtATime(Wrapped):
    def __init__(self, whole):
        super().__init__(whole)
        self._lock = threading.Lock()

    def exchange(self, sends, receives, *, deadline):
        with self._lock:
            self._whole.exchange(sends, receives, deadline=deadline)


class SendsBeforeItReceives(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(sends, (), deadline=deadline)
        self._whole.exchange((), receives, deadline=deadline)


class DropsMessagesToItself(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        others = [one for one in sends if one.peer != self.rank]
        self._whole.exchange(others, receives, deadline=deadline)


class DropsEmptyMessages(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        full = [one for one in sends if sum(len(buffer) for buffer in one.buffers)]
        self._whole.exchange(full, receives, deadline=deadline)


class HidesMismatches(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        with contextlib.suppress(MessageMismatch):
            self._whole.exchange(sends, receives, deadline=deadline)


class ShowsTheFirstMismatch(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except MessageMismatch as error:
            raise MessageMismatch(error.mismatches[:1]) from error


class DeliversWrongSizes(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except MessageMismatch:
            for slot in receives:
                slot.buffer[:1] = b"?"
            raise


class ReadsItsBuffersLate(Wrapped):
    """Rank 0 returns once its own slots are filled, and sends what its buffers hold by then."""

    def exchange(self, sends, receives, *, deadline):
        if self.rank or not any(one.tag == TAG for one in sends):
            self._whole.exchange(sends, receives, deadline=deadline)
            return
        self._later(sends, (), after_s=0.2)
        self._whole.exchange((), receives, deadline=deadline)


class FillsItsSlotsLate(Wrapped):
    """Rank 0 returns once its messages have gone, and fills its slots when it comes to it."""

    def exchange(self, sends, receives, *, deadline):
        if self.rank or not any(one.tag == TAG for one in sends):
            self._whole.exchange(sends, receives, deadline=deadline)
            return
        self._later((), receives, after_s=0.2)
        self._whole.exchange(sends, (), deadline=deadline)


class MixesTags(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        self._whole.exchange(
            [Outgoing(one.peer, TAG, one.stamp, one.buffers) for one in sends],
            [Incoming(one.peer, TAG, one.stamp, one.buffer) for one in receives],
            deadline=deadline,
        )


class TradesOnlyWithTheFirst(Wrapped):
    def trade(self, tag, stamp, content, slots, *, deadline):
        super().trade(tag, stamp, content, slots[:1], deadline=deadline)


class CutsItsTrades(Wrapped):
    """What is longer than a trade was thought to be is left out."""

    def trade(self, tag, stamp, content, slots, *, deadline):
        short = [(peer, slot[:65536]) for peer, slot in slots]
        super().trade(tag, stamp, content[:65536], short, deadline=deadline)


class TradesWithoutAStamp(Wrapped):
    def trade(self, tag, stamp, content, slots, *, deadline):
        super().trade(tag, b"", content, slots, deadline=deadline)


class ReturnsWhenTimeIsUp(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        with contextlib.suppress(DeadlineExceeded):
            self._whole.exchange(sends, receives, deadline=deadline)


class TakesItsTime(Wrapped):
    """A wait that ends, but long after the user said."""

    def exchange(self, sends, receives, *, deadline):
        longer = Deadline(deadline.remaining() + 2 * LAW_DEADLINE_S)
        self._whole.exchange(sends, receives, deadline=longer)


class KeepsItsSlots(Wrapped):
    """A slot that was given up still takes the next message, of which the new slot has a copy."""

    _kept: Sequence[Incoming] = ()

    def exchange(self, sends, receives, *, deadline):
        places = [(one.peer, one.tag) for one in receives]
        if self._kept and places == [(one.peer, one.tag) for one in self._kept]:
            self._whole.exchange(sends, self._kept, deadline=deadline)
            for old, new in zip(self._kept, receives, strict=True):
                new.buffer[:] = old.buffer
            return
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except DeadlineExceeded:
            self._kept = receives
            raise


class KeepsItsMessages(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except DeadlineExceeded:
            self._later(sends, (), after_s=0.1)
            raise


class NamesEverybody(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(str(error), [one.peer for one in receives]) from error


class ForgetsToClose(Wrapped):
    def close(self):
        """Nothing."""


class LosesWhatItSentLast(Wrapped):
    """What rank 0 sends first without waiting is still here when it closes."""

    _held: Sequence[Outgoing] = ()

    def exchange(self, sends, receives, *, deadline):
        if self.rank == 0 and not receives and not self._held:
            self._held = sends
        else:
            self._whole.exchange(sends, receives, deadline=deadline)


class LeavesAsIfItHadDied(Wrapped):
    def close(self):
        self._whole.vanish()


class BlamesItsNeighbour(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except PeerLost as error:
            raise PeerLost((error.rank + 1) % self.world_size, str(error)) from error


class ForgetsTheReason(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except RemoteError as error:
            raise RemoteError(error.rank, "Abort", "something") from error


class NamesTheSymptom(Wrapped):
    def exchange(self, sends, receives, *, deadline):
        try:
            self._whole.exchange(sends, receives, deadline=deadline)
        except MessageMismatch as error:
            raise error.__cause__ or error from None


class AbortsInSilence(Wrapped):
    def abort(self, reason):
        self._whole.close()


LAW_DEADLINE_S = 1.0

# Each law, the transports that break it, and a part of what it says of them.
BREAKS: dict[str, list[tuple[Callable[[NetTransport], NetTransport], str]]] = {
    "messages under one tag arrive in order, and other tags are not held up by them": [
        (Reorders, "sent 70 bytes stamped b'4' under tag 1024"),
    ],
    "a large message that nobody takes yet holds up no other tag": [
        (TakesOneCallAtATime, "waited"),
    ],
    "an exchange of any sizes, in both directions at once, between any ranks, ends": [
        (SendsBeforeItReceives, r"waited \d\S* s for"),
    ],
    "a message to oneself works, and an empty one": [
        (DropsMessagesToItself, r"waited \d\S* s for"),
        (DropsEmptyMessages, r"waited \d\S* s for"),
    ],
    "a message of another stamp or size raises, and nothing is truncated or reinterpreted": [
        (HidesMismatches, "four messages that nobody expected were taken"),
        (ShowsTheFirstMismatch, "the mismatches are"),
        (DeliversWrongSizes, "a slot holds what it did not expect"),
    ],
    "after an exchange the send buffers are the caller's, and the slots are whole": [
        (ReadsItsBuffersLate, "changed after they were sent"),
        (FillsItsSlotsLate, "changed after they were sent"),
    ],
    "threads may use one transport at once on different tags": [
        (MixesTags, "came wrong|stamped"),
    ],
    "a trade is an exchange of one content with each peer, of any size": [
        (TradesOnlyWithTheFirst, "1 bytes from rank . came wrong"),
        (CutsItsTrades, "65537 bytes from rank . came wrong"),
        (TradesWithoutAStamp, "a trade of unequal stamps was taken"),
    ],
    "a wait without its peer ends, and names the peer": [
        (ReturnsWhenTimeIsUp, "a message came that nobody sent"),
        (TakesItsTime, "the wait was not as long as its deadline"),
        (KeepsItsSlots, "was written to after its deadline"),
    ],
    "a deadline names the peers that were silent, and no others": [
        (NamesEverybody, "were silent"),
        (ReturnsWhenTimeIsUp, "a message came that nobody sent"),
    ],
    "a message that nobody takes ends with its deadline, and then comes whole or not at all": [
        (TakesItsTime, "a deadline of 0.2 s took"),
        (KeepsItsMessages, "a message changed after its sender's deadline"),
    ],
    "close may be called twice, what was sent before still arrives, and use after it is an error": [
        (ForgetsToClose, "a closed transport was used"),
        (LosesWhatItSentLast, "rank 0 left"),
    ],
    "close ends the waits of other threads": [
        (ForgetsToClose, r"waited \d\S* s for"),
    ],
    "an early leave is named as that": [
        (BlamesItsNeighbour, "is blamed; rank 2 left"),
        (LeavesAsIfItHadDied, "does not say that it left"),
    ],
    "when a rank aborts, the others raise its reason with its rank": [
        (ForgetsTheReason, "the error says"),
        (AbortsInSilence, "expected RemoteError; got PeerLost"),
    ],
    "what came wrong is the cause, not a rank that ends because of it": [
        (NamesTheSymptom, "rank 1 left"),
    ],
}


def test_every_law_has_its_counter_test():
    assert set(BREAKS) == set(LAWS)


@pytest.mark.parametrize("text", LAWS)
def test_a_wrapper_that_breaks_nothing_passes(text):
    """The counter-test of those below: neither the wrapper nor the short deadline breaks a law."""
    mesh = [Wrapped(one) for one in MemoryTransport.mesh(3)]
    run_on_mesh(mesh, lambda one: LAWS[text].body(one, deadline_s=LAW_DEADLINE_S))


@pytest.mark.parametrize(
    ("text", "broken", "says"),
    [(text, *one) for text, breaks in BREAKS.items() for one in breaks],
    ids=[one[0].__name__ for breaks in BREAKS.values() for one in breaks],
)
def test_a_transport_that_breaks_the_law_fails_it(text, broken, says):
    mesh = [broken(one) for one in MemoryTransport.mesh(3)]
    errors = (AssertionError, DeadlineExceeded, MessageMismatch, PeerLost)
    with pytest.raises(errors, match=says):
        run_on_mesh(
            mesh, lambda one: LAWS[text].body(one, deadline_s=LAW_DEADLINE_S), watchdog_s=15
        )


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_rank_that_died_is_named(world_size):
    run_on_mesh(
        MemoryTransport.mesh(world_size), lambda one: dying(one, lambda victim: victim.vanish())
    )


def test_a_transport_that_blames_the_wrong_rank_for_a_death_fails():
    def body(transport):
        dying(transport, lambda one: one._whole.vanish(), deadline_s=2.0)

    with pytest.raises(AssertionError, match="is blamed; rank 2 died"):
        run_on_mesh([BlamesItsNeighbour(one) for one in MemoryTransport.mesh(3)], body)


def test_a_transport_on_which_a_death_goes_unnoticed_fails():
    def body(transport):
        dying(transport, lambda one: None, deadline_s=1.0)

    with pytest.raises(AssertionError, match="expected PeerLost; got DeadlineExceeded"):
        run_on_mesh(MemoryTransport.mesh(3), body)
