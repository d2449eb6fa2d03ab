"""How a message becomes MPI messages and is read back, and the copies that MPI has not read yet."""

from __future__ import annotations

import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import LimitExceeded, Malformed, WireError
from rlx.net.crossovers import INLINE_BYTES, PACK_BYTES
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_wire import (
    MAX_HEADER_BYTES,
    MAX_PIECES,
    cut_by,
    decode,
    decode_table,
    encode_large,
    encode_small,
    table_bytes,
)
from rlx.net.transport import MAX_STAMP_BYTES, Outgoing

# --- the wire ---------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 100, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1])


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, max_size=6), st.binary(max_size=40), st.sampled_from([1000, 4096, 1 << 30]))
def test_what_goes_out_for_a_message_is_read_back(sizes, stamp, chunk_bytes):
    buffers = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    whole = b"".join(buffers)
    message = Outgoing(0, 1, stamp, buffers)
    small = encode_small(message)
    if small is not None:
        header = decode(small)
        assert header == (stamp, len(whole), 0, whole)
        return
    parcel = encode_large(message, chunk_bytes)
    header = decode(parcel.copies[0])
    assert header == (stamp, len(whole), len(parcel.pieces), b"")
    if table_bytes(header):
        sizes = decode_table(header, parcel.copies[1])
        assert sizes == tuple(len(piece) for piece in parcel.pieces)
    assert len(parcel.copies) == (2 if table_bytes(header) else 1)
    assert b"".join(parcel.pieces) == whole
    assert all(0 < len(piece) <= chunk_bytes for piece in parcel.pieces)


@pytest.mark.parametrize(("size", "rides"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
def test_no_header_is_longer_than_what_is_received_for_one(size, rides):
    """The largest that is sent: with the longest stamp, and the largest payload that rides."""
    message = Outgoing(0, 1, b"s" * MAX_STAMP_BYTES, (bytes(size), b"", bytearray()))
    assert (encode_small(message) is not None) == rides
    headers = [encode_small(message) or b"", encode_large(message, 64).copies[0]]
    longest = max(len(header) for header in headers)
    assert (longest == MAX_HEADER_BYTES) == rides
    assert longest <= MAX_HEADER_BYTES


def test_the_pieces_of_a_large_message_are_the_callers_memory_and_not_a_copy():
    buffer = bytearray(INLINE_BYTES + 1)
    parcel = encode_large(Outgoing(0, 1, b"", (buffer,)), 1 << 30)
    buffer[-1] = 9
    assert parcel.pieces[-1][-1] == 9


def test_a_small_message_is_a_copy():
    buffer = bytearray(INLINE_BYTES)
    small = encode_small(Outgoing(0, 1, b"", (buffer,)))
    buffer[-1] = 9
    assert small[-1] == 0


def test_many_small_buffers_become_few_pieces():
    parcel = encode_large(Outgoing(0, 1, b"", [b"x" * 100] * 5000), 1 << 30)
    assert len(parcel.pieces) == -(-5000 // (PACK_BYTES // 100))


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(0, 1, b"stamp", (b"",)),
        Outgoing(0, 1, b"stamp", (bytes(50),)),
    ],
)
def test_every_small_message_cut_short_is_refused(message):
    small = encode_small(message)
    decode(small)
    for end in range(len(small)):
        with pytest.raises(WireError):
            decode(small[:end])


def test_every_header_of_a_large_message_cut_short_is_refused():
    header = encode_large(Outgoing(0, 1, b"stamp", (bytes(200_000),)), 1 << 30).copies[0]
    decode(header)
    for end in range(len(header)):
        with pytest.raises(WireError):
            decode(header[:end])


@pytest.mark.parametrize("sizes", [(70_000, 1), (0, 70_000), (1 << 31, 2**64 - (1 << 31) + 70_000)])
def test_pieces_that_are_not_those_of_the_payload_are_refused(sizes):
    header = decode((70_000).to_bytes(8, "little") + bytes(2) + (2).to_bytes(4, "little"))
    right = b"".join(size.to_bytes(8, "little") for size in (69_999, 1))
    wrong = b"".join(size.to_bytes(8, "little") for size in sizes)
    assert decode_table(header, right) == (69_999, 1)
    with pytest.raises(Malformed):
        decode_table(header, wrong)


def test_one_piece_that_no_int_counts_is_refused():
    fits, too_long = (
        size.to_bytes(8, "little") + bytes(2) + (1).to_bytes(4, "little")
        for size in ((1 << 31) - 1, 1 << 31)
    )
    assert decode(fits).pieces == 1
    with pytest.raises(Malformed):
        decode(too_long)


def test_a_number_of_pieces_over_the_limit_is_refused_by_both_sides():
    with pytest.raises(LimitExceeded):
        encode_large(Outgoing(0, 1, b"", (bytes(MAX_PIECES + 1),)), 1)
    with pytest.raises(LimitExceeded):
        decode((70_000).to_bytes(8, "little") + bytes(2) + (70_000).to_bytes(4, "little"))


def test_a_view_is_cut_by_sizes_in_order():
    assert [bytes(part) for part in cut_by(memoryview(b"abcdef"), (1, 3, 2))] == [
        b"a",
        b"bcd",
        b"ef",
    ]


# --- the outbox -------------------------------------------------------------------------------


class SlowComm:
    """A communicator whose sends end when the test says so."""

    def __init__(self):
        self.sent = []
        self.done = False

    def Isend(self, buffer, peer, tag):  # noqa: N802
        self.sent.append((bytes(buffer[0]), peer, tag))
        return types.SimpleNamespace(Test=lambda: self.done)


def test_copies_are_kept_until_mpi_has_read_them_and_bounded():
    comm = SlowComm()
    outbox = Outbox(types.SimpleNamespace(BYTE="byte"), comm, room_bytes=10)
    kept = outbox.requests
    outbox.post(b"12345678", 1, 2)
    assert outbox.has_room()
    outbox.post(b"9012", 1, 2)
    assert not outbox.has_room()
    assert [content for content, _ in kept] == [b"12345678", b"9012"]
    comm.done = True
    assert outbox.has_room()
    assert outbox.is_empty()
    assert not kept
    assert comm.sent == [(b"12345678", 1, 2), (b"9012", 1, 2)]


def test_a_steady_stream_of_copies_leaves_behind_only_what_mpi_has_not_read():
    unread = {b"second", b"third", b"fourth"}
    comm = types.SimpleNamespace(
        Isend=lambda buffer, peer, tag: types.SimpleNamespace(Test=lambda: buffer[0] not in unread)
    )
    outbox = Outbox(types.SimpleNamespace(BYTE="byte"), comm)
    for content in (b"first", b"second", b"third"):
        outbox.post(content, 1, 2)
    assert [content for content, _ in outbox.requests] == [b"second", b"third"]
    unread.remove(b"second")
    outbox.post(b"fourth", 1, 2)
    assert [content for content, _ in outbox.requests] == [b"third", b"fourth"]
