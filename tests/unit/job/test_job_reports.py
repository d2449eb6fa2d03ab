"""Whom a launcher blames, and when it is sure of that, from what ranks report and how they end."""

from __future__ import annotations

import json
import os
import signal

import pytest

from rlx.errors import (
    ConfigError,
    ConnectError,
    DataError,
    DeadlineExceeded,
    DisagreementError,
    PeerLost,
    RemoteError,
)
from rlx.job.reports import (
    REPORT_LIMIT_BYTES,
    REPORT_VARIABLE,
    Ended,
    cause_of,
    is_sure,
    read_report,
    report_of,
    send_report,
    summary,
)


def ended(rank: int, error: BaseException | None = None, code: int = 1, **more: bool) -> Ended:
    return Ended(rank, code, None if error is None else report_of(rank, error), **more)


def lost(rank: int) -> PeerLost:
    return PeerLost(rank, f"rank {rank} is gone")


@pytest.mark.parametrize(
    "one",
    [
        ended(1, ValueError("bad lr")),
        ended(1, ConfigError("no such key")),
        ended(1, DataError("no such file")),
        ended(1, code=-signal.SIGKILL),
        ended(1, code=3),
    ],
)
def test_a_rank_that_fails_by_itself_is_the_cause_for_sure(one):
    assert is_sure([one])
    assert is_sure([ended(0, lost(1)), one])


@pytest.mark.parametrize(
    "error",
    [
        lost(0),
        RemoteError(0, "ValueError", "bad lr"),
        ConnectError("nobody listens"),
        DeadlineExceeded("rank 0 is silent", [0]),
        DisagreementError("ranks called different collectives"),
    ],
)
def test_a_rank_that_fails_at_its_peers_is_not_the_cause_for_sure(error):
    assert not is_sure([ended(1, error), ended(2, error)])


def test_a_rank_that_ended_well_or_was_ended_says_nothing():
    assert not is_sure([ended(0, code=0), ended(1, code=-signal.SIGTERM, stopped=True)])


def test_the_blamed_rank_is_the_cause_though_another_ended_first():
    everyone = [ended(0, lost(2)), ended(1, lost(2)), ended(2, code=-signal.SIGKILL)]
    assert cause_of(everyone).rank == 2
    assert summary(everyone, debug=False).splitlines() == [
        "rlx: error: rank 2: the process was ended by SIGKILL; was the machine out of memory?",
        "rlx: rank 0, 1 ended because of that",
    ]


def test_where_nobody_else_is_blamed_the_first_to_fail_is_the_cause():
    everyone = [ended(1, ConnectError("first")), ended(0, ConnectError("second"))]
    assert cause_of(everyone).rank == 1
    assert cause_of([*everyone, ended(2, ValueError("its own"))]).rank == 2


@pytest.mark.parametrize("letter", ["x", "\n", "é", "漢", "\U0001f4a5", "\udcff"])
def test_a_report_of_any_text_fits_its_pipe_and_can_be_read(letter):
    reading, writing = os.pipe()
    error = ValueError("first " + letter * 20_000)
    assert send_report(error, {REPORT_VARIABLE: str(writing), "RLX_RANK": "3"})
    content = os.read(reading, 1 << 20)
    os.close(reading)
    os.close(writing)
    assert len(content) <= REPORT_LIMIT_BYTES
    report = read_report(content)
    assert report is not None
    assert (report.rank, report.kind, report.message[:6]) == (3, "ValueError", "first ")


def test_a_rank_whose_launcher_is_gone_or_that_has_none_goes_on():
    assert not send_report(ValueError("x"), {})
    reading, writing = os.pipe()
    os.close(reading)
    assert send_report(ValueError("x"), {REPORT_VARIABLE: str(writing)})
    os.close(writing)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"rank": 1}', json.dumps("x").encode()])
def test_what_is_no_report_is_none(content):
    assert read_report(content) is None
