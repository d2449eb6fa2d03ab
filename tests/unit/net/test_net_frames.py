"""Frames and notices as bytes: what they hold, and what is refused before it costs anything."""

from __future__ import annotations

import struct
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import (
    LimitExceeded,
    Malformed,
    PeerLost,
    RemoteError,
    Truncated,
    UnknownVersion,
    UsageError,
    WireError,
)
from rlx.net.frames import (
    GOODBYE,
    HEADER,
    IOV_MAX,
    MESSAGE,
    Limits,
    byte_view,
    drop_sent,
    pack_goodbye,
    pack_message_header,
    pieces_for_one_call,
    unpack_header,
)
from rlx.net.notices import MAX_NOTICE_BYTES, Notice
from rlx.net.transport import MAX_STAMP_BYTES, MAX_TAG


def read(header: bytes, limit_bytes: int = 1 << 40) -> tuple[int, int, int, int]:
    return unpack_header(header, 0, peer=3, limit_bytes=limit_bytes)


@pytest.mark.parametrize("size", [0, 1, (1 << 31) - 1, 1 << 31, 2_400_000_401, 1 << 40])
def test_a_header_keeps_lengths_of_64_bits(size):
    assert read(pack_message_header(7, 12, size)) == (MESSAGE, 7, 12, size)


@pytest.mark.parametrize("size", [(1 << 40) + 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8])
def test_a_length_over_the_limit_is_refused_and_the_peer_named(size):
    with pytest.raises(LimitExceeded, match=f"rank 3 .*{size}"):
        read(pack_message_header(7, 12, size))


def test_what_is_no_header_is_refused_by_its_fault():
    good = struct.pack("<2sBBHHQ", b"rx", 1, MESSAGE, MAX_TAG, MAX_STAMP_BYTES, 9)
    assert read(good) == (MESSAGE, MAX_TAG, MAX_STAMP_BYTES, 9)
    for fault, bad in [
        (Malformed, struct.pack("<2sBBHHQ", b"xx", 1, MESSAGE, 0, 0, 0)),
        (UnknownVersion, struct.pack("<2sBBHHQ", b"rx", 2, MESSAGE, 0, 0, 0)),
        (Malformed, struct.pack("<2sBBHHQ", b"rx", 1, 9, 0, 0, 0)),
        (Malformed, struct.pack("<2sBBHHQ", b"rx", 1, GOODBYE, 0, 0, 1)),
        (LimitExceeded, struct.pack("<2sBBHHQ", b"rx", 1, MESSAGE, MAX_TAG + 1, 0, 0)),
        (LimitExceeded, struct.pack("<2sBBHHQ", b"rx", 1, MESSAGE, 0, MAX_STAMP_BYTES + 1, 0)),
    ]:
        with pytest.raises(fault, match="rank 3"):
            read(bad)


def test_a_goodbye_is_a_header_alone():
    assert len(pack_goodbye()) == HEADER.size
    assert read(pack_goodbye()) == (GOODBYE, 0, 0, 0)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30),
    call_bytes=st.integers(1, 100),
    taken=st.integers(1, 1 << 30),
)
def test_pieces_sent_by_calls_that_take_less_are_whole_and_in_order(pieces, call_bytes, taken):
    views = deque(map(memoryview, pieces))
    out = b""
    while views:
        call = pieces_for_one_call(views, call_bytes)
        sent = b"".join(call)[: max(1, taken % (call_bytes + 1))]
        assert 0 < len(b"".join(call)) <= call_bytes
        out += sent
        drop_sent(views, len(sent))
    assert out == b"".join(pieces)


def test_one_call_gets_no_more_pieces_than_the_system_takes():
    views = [memoryview(b"a")] * (IOV_MAX + 5)
    assert len(pieces_for_one_call(views, 1 << 30)) == IOV_MAX


def test_a_view_of_any_format_is_sent_as_its_bytes_and_a_strided_one_is_refused():
    wide = memoryview(bytearray(16)).cast("Q")
    assert len(byte_view(wide)) == 16
    assert len(byte_view(memoryview(b"").cast("B"))) == 0
    with pytest.raises(UsageError, match="contiguous"):
        byte_view(memoryview(bytearray(16))[::2])


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(UsageError, match="call_bytes"):
        Limits(call_bytes=0)


def test_a_notice_comes_back_as_the_error_that_it_went_as():
    try:
        raise ValueError("bad lr")
    except ValueError as error:
        sent = Notice.of_reason(2, error)
    error = Notice.decode(sent.encode(), 4).to_error()
    assert isinstance(error, RemoteError)
    assert (error.rank, error.kind, error.message) == (2, "ValueError", "bad lr")
    assert 'raise ValueError("bad lr")' in error.traceback


def test_the_rank_that_is_blamed_stays_the_same_when_a_notice_is_passed_on():
    lost = Notice.of_reason(1, PeerLost(2, "rank 2 died"))
    assert isinstance(lost.to_error(), PeerLost)
    assert lost.to_error().rank == 2
    passed_on = Notice.of_reason(0, Notice.of_reason(1, "stop").to_error())
    assert passed_on == Notice(1, False, "Abort", "stop")


def test_a_notice_is_cut_to_its_limits_and_keeps_the_end_of_the_traceback():
    notice = Notice(0, False, "k" * 999, "é" * 99_999, "x" * 99_999 + "the line that failed")
    assert len(notice.encode()) <= MAX_NOTICE_BYTES
    assert Notice.decode(notice.encode(), 1).traceback.endswith("the line that failed")


@given(st.binary(max_size=60))
def test_bytes_that_are_no_notice_are_a_wire_error(data):
    try:
        notice = Notice.decode(data, 4)
    except WireError:
        return
    assert notice.encode() is not None
    assert notice.blamed < 4


def test_notices_with_lying_lengths_are_refused():
    good = Notice(1, True, "PeerLost", "gone").encode()
    assert Notice.decode(good, 2).blamed == 1
    for fault, bad in [
        (Truncated, good[:3]),
        (Malformed, good + b"x"),
        (Malformed, good[:-1]),
        (LimitExceeded, good[:12] + b"\xff\xff\xff\xff" + good[16:]),
    ]:
        with pytest.raises(fault):
            Notice.decode(bad, 2)
    with pytest.raises(Malformed, match="rank 1"):
        Notice.decode(good, 1)
