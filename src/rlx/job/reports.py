"""What a rank tells its launcher when it fails, and what the launcher makes of all of it.

A rank that the launcher started writes one line of JSON to a pipe of its own instead of a message
to standard error, so that the launcher can print the cause first, whoever was quicker.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlx.errors import DisagreementError, PeerLost, RemoteError, RlxError, TransportError

REPORT_VARIABLE = "RLX_REPORT_FD"
REPORT_LIMIT_BYTES = 60_000  # below what a pipe holds, so that writing it never waits for a reader
_TRACEBACK_CHARACTERS = 6_000


@dataclass(frozen=True)
class Report:
    """One rank's failure. `blamed` is the rank that went first, as far as this one knows."""

    rank: int
    kind: str
    message: str
    blamed: int
    traceback: str
    planned: bool  # an error of rlx's own, whose message says all; else a traceback is due
    is_own: bool  # no other rank can have been the reason


@dataclass(frozen=True)
class Ended:
    """How a rank's process ended: its exit code (negative for a signal), and what it reported.

    `stopped` says that the launcher ended it, because another one had failed.
    """

    rank: int
    code: int
    report: Report | None
    stopped: bool = False


def report_of(rank: int, error: BaseException) -> Report:
    """The report of a rank that ends with `error`."""
    blamed = error.rank if isinstance(error, PeerLost | RemoteError) else rank
    text = "".join(traceback.format_exception(error))
    return Report(
        rank=rank,
        kind=type(error).__name__,
        message=str(error)[:_TRACEBACK_CHARACTERS],
        blamed=blamed,
        traceback=text[-_TRACEBACK_CHARACTERS:],
        planned=isinstance(error, RlxError),
        is_own=not isinstance(error, TransportError | RemoteError | DisagreementError),
    )


def send_report(error: BaseException, environ: Mapping[str, str]) -> bool:
    """Tell the launcher, if this rank has one; whether it has."""
    number = environ.get(REPORT_VARIABLE, "")
    if not number.isdecimal():
        return False
    line = _line_of(report_of(int(environ.get("RLX_RANK", "0")), error))
    with contextlib.suppress(BrokenPipeError):  # the launcher is gone, and this rank goes with it
        os.write(int(number), line)
    return True


def _line_of(report: Report) -> bytes:
    """One line, within the limit: text outside of ASCII takes up to six bytes a character."""
    line = json.dumps(report.__dict__).encode()
    while len(line) > REPORT_LIMIT_BYTES:
        report = replace(
            report,
            message=report.message[: len(report.message) // 2],
            traceback=report.traceback[len(report.traceback) // 2 :],
        )
        line = json.dumps(report.__dict__).encode()
    return line


def read_report(content: bytes) -> Report | None:
    """The report that a rank wrote, or None if it wrote none that can be read."""
    try:
        fields: Any = json.loads(content)
        return Report(**fields)
    except (ValueError, TypeError):
        return None


def cause_of(ended: Sequence[Ended]) -> Ended:
    """The failure that the others follow from, among ranks in the order in which they ended.

    The one that most of the failed ranks blame; of several, one that no other rank can have been
    the reason for; of several, the first. At least one has failed by itself.
    """
    failed = [one for one in ended if one.code and not one.stopped]
    blamed = [one.report.blamed for one in failed if one.report is not None]
    return max(failed, key=lambda one: (blamed.count(one.rank), _is_own(one)))


def is_sure(ended: Sequence[Ended]) -> bool:
    """Whether the cause is among `ended`, whatever the ranks that still run might say."""
    return any(_is_own(one) for one in ended if one.code and not one.stopped)


def _is_own(one: Ended) -> bool:
    """Whether a failed rank died without a word, or by an error that is its own."""
    return one.report is None or one.report.is_own


def summary(ended: Sequence[Ended], debug: bool) -> str:
    """What the launcher prints: the cause whole, then who else ended because of it, in a line."""
    cause = cause_of(ended)
    alone = len(ended) == 1
    lines = [_cause_text(cause, debug, alone)]
    others = sorted(one.rank for one in ended if one.code and one.rank != cause.rank)
    if others:
        ranks = ", ".join(str(rank) for rank in others)
        lines.append(f"rlx: rank {ranks} ended because of that")
    return "\n".join(lines) + "\n"


def _cause_text(cause: Ended, debug: bool, alone: bool) -> str:
    report = cause.report
    who = "" if alone else f"rank {cause.rank}: "
    if report is None:
        return f"rlx: error: {who}{_exit_text(cause.code)}"
    shown = report.message if report.planned else f"{report.kind}: {report.message}"
    text = f"rlx: error: {who}{shown}"
    if debug or not report.planned:
        return f"{report.traceback.rstrip()}\n{text}"
    return text


def _exit_text(code: int) -> str:
    """How a process ended that said nothing itself."""
    if code >= 0:
        return f"the process ended with status {code} and without a word"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; was the machine out of memory?" if -code == signal.SIGKILL else ""
    return f"the process was ended by {name}{hint}"
