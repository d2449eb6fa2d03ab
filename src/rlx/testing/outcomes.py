"""How each rank of a world ended: its result or its error, whom it names, and when that was."""

from __future__ import annotations

import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.errors import DeadlineExceeded, DisagreementError, PeerLost, RemoteError, WireError
from rlx.net import Deadline, NetTransport

_DISAGREEING_RANK = re.compile(r"^  rank (\d+): ", re.MULTILINE)
_SENDER = re.compile(r"^rank (\d+) (?:sent|announced)")
_MISSING_RANK = re.compile(r"for rank (\d+)|; rank (\d+): ")


@dataclass(frozen=True)
class Failure:
    """A rank's error, as text and numbers.

    named    the ranks that the error names as the cause, in ascending order
    at_s     when it was raised, by the monotonic clock that all processes of a host share
    """

    kind: str
    message: str
    named: tuple[int, ...]
    at_s: float
    traceback: str = ""


@dataclass(frozen=True)
class Outcome:
    """How one rank ended. Neither result nor failure: it said nothing before its end.

    status    a process's exit status, negative for a signal; None for a thread, or for a process
              that had not ended in time
    """

    rank: int
    result: Any = None
    failure: Failure | None = None
    finished: bool = False
    status: int | None = None


def named_by(error: BaseException) -> tuple[int, ...]:
    """The ranks that an error names as the cause; none where it names nobody.

    Of a disagreement these are the ranks that stand alone with their call. A disagreement or a
    deadline that another rank passed on names whom that rank named, and not that rank.
    """
    if isinstance(error, PeerLost):
        return (error.rank,)
    if isinstance(error, RemoteError):
        return _named_in(error.kind, error.message) or (error.rank,)
    if isinstance(error, DeadlineExceeded):
        return error.peers
    if isinstance(error, WireError):
        return tuple(int(rank) for rank in _SENDER.findall(str(error)))
    if isinstance(error, DisagreementError):
        return _named_in(DisagreementError.__name__, str(error))
    return ()


def _named_in(kind: str, message: str) -> tuple[int, ...]:
    """Whom the text of a disagreement or of a missed deadline names."""
    found: set[str] = set()
    if kind == DisagreementError.__name__:
        found = set(_DISAGREEING_RANK.findall(message))
    if kind == DeadlineExceeded.__name__:
        found = {one or other for one, other in _MISSING_RANK.findall(message)}
    return tuple(sorted(map(int, found)))


def failure_of(error: BaseException) -> Failure:
    """An error that was raised just now."""
    at_s = time.monotonic()
    text = "".join(traceback.format_exception(error))
    return Failure(type(error).__name__, str(error), named_by(error), at_s, text)


def give_up(transport: NetTransport, error: BaseException) -> None:
    """End a rank that raised, as its group would.

    Every rank raises a disagreement by itself, from messages that a notice might overtake.
    """
    if isinstance(error, DisagreementError):
        transport.close()
    else:
        transport.abort(error)


def watch_ranks(
    transports: Sequence[NetTransport],
    body: Callable[[NetTransport], Any],
    *,
    watchdog_s: float,
) -> list[Outcome | None]:
    """Run `body(transport)` in one thread a rank; how each of them ended, in rank order.

    A rank that raises gives up its transport; the others are not closed. None stands for a rank
    that had not ended after `watchdog_s`, which is a hang.
    """
    outcomes: list[Outcome | None] = [None] * len(transports)

    def run(place: int, one: NetTransport) -> None:
        try:
            outcomes[place] = Outcome(one.rank, result=body(one), finished=True)
        except BaseException as error:  # a rank's outermost edge
            outcomes[place] = Outcome(one.rank, failure=failure_of(error))
            give_up(one, error)

    threads = [
        threading.Thread(target=run, args=one, name=f"rlx-rank-{one[0]}", daemon=True)
        for one in enumerate(transports)
    ]
    deadline = Deadline(watchdog_s)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline.remaining())
    return list(outcomes)


def summary(outcomes: Sequence[Outcome | None]) -> str:
    """A line for each thing that happened, with the ranks that it happened to.

    Ranks that wait in vain are shown as waiting, and whom they wait for as missing.
    """
    lines: dict[str, list[int]] = {}
    for place, one in enumerate(outcomes):
        lines.setdefault(_ending(one), []).append(place if one is None else one.rank)
    missing = sorted({peer for one in outcomes for peer in _awaited(one)})
    head = [f"missing: rank {', '.join(map(str, missing))}"] if missing else []
    return "\n".join(
        [*head, *(f"rank {', '.join(map(str, who))}: {what}" for what, who in lines.items())]
    )


def _awaited(one: Outcome | None) -> tuple[int, ...]:
    failure = None if one is None else one.failure
    if failure is None or DeadlineExceeded.__name__ not in (failure.kind, _passed_on(failure)):
        return ()
    return failure.named


def _passed_on(failure: Failure) -> str:
    """The kind of the error that another rank passed on, or nothing."""
    if failure.kind != RemoteError.__name__:
        return ""
    return failure.message.partition(" failed: ")[2].partition(":")[0]


def _ending(one: Outcome | None) -> str:
    if one is None:
        return "has not ended"
    if one.failure is not None and _awaited(one):
        where = re.search(r"'(call [^']*)'", one.failure.message)
        at = f" at {where[1]}" if where else ""
        return f"waited in vain for rank {', '.join(map(str, one.failure.named))}{at}"
    if one.failure is not None:
        return f"{one.failure.kind}: {one.failure.message}"
    if one.finished:
        return "finished"
    if one.status is None:
        return "has not ended"
    if one.status < 0:
        return f"was ended by {signal.Signals(-one.status).name}"
    return f"ended with status {one.status} and without a word"
