"""A proven client of the store that is hostile or broken: what it can cost, and whom."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time

import pytest
from attack_kit import closed_by_peer, memory_bytes, reset, shake, until

from rlx.errors import ConnectError, DeadlineExceeded, Malformed, WireError
from rlx.net.auth import Accepting, Channel, Facts, Status
from rlx.net.deadline import Deadline
from rlx.net.rendezvous import join_mesh
from rlx.net.store import ANSWER, GET, HERE, MAX_VALUE_BYTES, PEEK, REQUEST, SET
from rlx.net.store_client import StoreClient
from rlx.net.store_server import StoreServer

KEY = b"a token of these tests"
WORLD = 16
MIB = 1 << 20


@pytest.fixture
def server():
    one = StoreServer(socket.create_server(("127.0.0.1", 0)), world_size=WORLD, key=KEY)
    yield one
    one.close()


def hostile(server: StoreServer, rank: int = 1) -> socket.socket:
    return shake(server.address, Facts(rank, WORLD, "", 0, Channel.STORE), KEY)


def request(what: int, key: bytes, value: bytes = b"", number: int = 1) -> bytes:
    return REQUEST.pack(what, len(key), len(value), number) + key + value


def assert_serves(server: StoreServer, rank: int = 2) -> None:
    """An honest client is answered, and at once."""
    started = time.monotonic()
    client = StoreClient(
        server.address, rank=rank, world_size=WORLD, key=KEY, deadline=Deadline(20)
    )
    client.set(f"honest {started}", b"value")
    assert client.get(f"honest {started}", deadline=Deadline(20)) == b"value"
    client.close()


@pytest.mark.parametrize(
    "asked",
    [
        request(SET, b""),
        request(SET, b"k" * 257, b"v"),
        REQUEST.pack(SET, 1, MAX_VALUE_BYTES + 1, 1) + b"k",
        REQUEST.pack(SET, 1, 0xFFFFFFFF, 1) + b"k",
        REQUEST.pack(SET, 0xFFFF, 0xFFFFFFFF, 1),
        request(GET, b"k", b"a value"),
        request(PEEK, b"k", b"a value"),
        request(0, b"k"),
        request(255, b"k"),
        b"".join(request(GET, b"never %d" % n, number=n) for n in range(1100)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 4096,
    ],
    ids=lambda data: f"{data[:12].hex()}-{len(data)}",
)
def test_a_request_over_a_limit_ends_its_connection_and_no_other(server, asked):
    with hostile(server) as bad, hostile(server, 3) as other:
        bad.sendall(asked)
        assert closed_by_peer(bad)
        other.sendall(request(SET, b"k", b"v"))
        assert other.recv(ANSWER.size) == ANSWER.pack(HERE, 0, 1)
    assert_serves(server)


def test_a_request_within_the_limits_is_answered(server):
    with hostile(server) as good:
        good.sendall(request(SET, b"k" * 256, bytes(MAX_VALUE_BYTES)))
        assert good.recv(ANSWER.size) == ANSWER.pack(HERE, 0, 1)


def test_asking_for_a_large_value_many_times_without_reading_costs_little(server):
    """64 KiB of requests ask for 4000 MiB of answers."""
    server.set("large", bytes(MAX_VALUE_BYTES))
    before = memory_bytes()
    with hostile(server) as greedy:
        greedy.setblocking(False)
        asked = b"".join(request(GET, b"large", number=n) for n in range(4000))
        with contextlib.suppress(BlockingIOError):
            while asked:
                asked = asked[greedy.send(asked) :]
        for rank in (2, 3):
            assert_serves(server, rank)
        assert memory_bytes() - before < 64 * MIB


def test_waiting_for_a_large_value_many_times_costs_little(server):
    before = memory_bytes()
    with hostile(server) as greedy:
        greedy.sendall(b"".join(request(GET, b"large", number=n) for n in range(1000)))
        assert_serves(server)
        server.set("large", bytes(MAX_VALUE_BYTES))
        until(lambda: greedy.recv(1), "the first answer")
        assert_serves(server)
        assert memory_bytes() - before < 64 * MIB


def test_a_fast_reader_of_large_values_does_not_keep_the_others_waiting(server):
    server.set("large", bytes(MAX_VALUE_BYTES))
    stop = threading.Event()

    def read_all(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set() and sock.recv(MIB):
                pass

    with hostile(server) as greedy:
        reader = threading.Thread(target=read_all, args=(greedy,))
        reader.start()
        greedy.sendall(b"".join(request(GET, b"large", number=n) for n in range(3000)))
        assert_serves(server)
        stop.set()
        greedy.shutdown(socket.SHUT_RDWR)
        reader.join(20)


def test_waits_of_clients_that_are_gone_are_forgotten(server):
    for _ in range(30):
        with hostile(server) as one:
            # The unfinished request after the waits keeps a megabyte of its own.
            waits = b"".join(request(GET, b"never", number=n) for n in range(1000))
            one.sendall(waits + REQUEST.pack(SET, 1, MAX_VALUE_BYTES, 1) + b"k" + bytes(MIB - 1))
            one.sendall(b"")
            until(lambda: len(server._waiting.get(b"never", ())) == 1000, "the waits are there")
            reset(one)
        until(lambda: not server._waiting, "the waits are gone")
    until(lambda: not server._clients, "the clients are gone")
    gc.collect()
    assert not any(server._clients_of.values())
    assert_serves(server)


def test_one_rank_cannot_take_all_descriptors_by_connecting_again_and_again(server):
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(hostile(server))
        with pytest.raises(ConnectError, match="two processes claim this rank"):
            hostile(server)
        assert_serves(server)
    until(lambda: not server._clients, "the clients are gone")
    hostile(server).close()


def test_a_client_that_never_reads_holds_nobody_up_when_the_store_closes(server):
    server.set("large", bytes(MAX_VALUE_BYTES))
    with hostile(server) as silent:
        silent.sendall(request(GET, b"large") * 1000)
        assert_serves(server)
        started = time.monotonic()
        server.close()
        assert time.monotonic() - started < 6
        assert closed_by_peer(silent)


@pytest.mark.parametrize(
    "published",
    [
        b"\xff\xfe 5",
        b"127.0.0.1 " + b"9" * 5000,
        b"127.0.0.1 5\n127.0.0.1 6",
        b"::1%\0 5",
        b"",
        b"127.0.0.1 00",
        "127.0.0.1 \N{ARABIC-INDIC DIGIT FIVE}".encode(),
    ],
)
def test_an_address_that_no_rank_publishes_names_the_rank_that_did(published):
    door = socket.create_server(("127.0.0.1", 0))
    address = door.getsockname()
    errors = []

    def first() -> None:
        try:
            join_mesh(0, 2, address, deadline=Deadline(20), coordinator_listener=door)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    with shake(address, Facts(1, 2, "", 0, Channel.STORE)) as bad:
        bad.sendall(request(SET, b"address/1", published))
        thread.join(30)
    assert [type(error) for error in errors] == [Malformed]
    assert "rank 1 published" in str(errors[0])


@pytest.mark.parametrize(
    "table",
    [
        b"ranks that never came\n" + b"9" * 5000,
        b"ranks that never came\n16",
        b"addresses of all ranks\n127.0.0.1 5\n127.0.0.1 " + b"1" * 5000,
        b"addresses of all ranks\n" * 3,
        b"\xff" * 64,
    ],
)
def test_a_table_that_rank_0_would_not_publish_is_refused(server, table):
    server.set("addresses", table)
    with pytest.raises(Malformed, match="published"):
        join_mesh(1, WORLD, server.address, token=KEY, deadline=Deadline(20))


def test_a_table_that_rank_0_would_publish_is_believed(server):
    server.set("addresses", b"ranks that never came\n7")
    with pytest.raises(DeadlineExceeded, match="never came: rank 7"):
        join_mesh(1, WORLD, server.address, token=KEY, deadline=Deadline(20))


def answering(answers: bytes) -> tuple[threading.Thread, tuple]:
    """A coordinator that proves itself and then says `answers` to whatever it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as sock:
            sock.settimeout(20)
            talk = Accepting(Facts(0, WORLD), KEY, lambda _: Status.WELCOME)
            while talk.needed:
                sock.sendall(talk.feed(sock.recv(talk.needed)))
            sock.recv(1 << 16)
            sock.sendall(answers)
            closed_by_peer(sock)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, listener.getsockname()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        (ANSWER.pack(HERE, MAX_VALUE_BYTES + 1, 1), "announced a value"),
        (ANSWER.pack(HERE, 0xFFFFFFFF, 1), "announced a value"),
        (ANSWER.pack(9, 0, 1), "unknown answer 9"),
        (ANSWER.pack(1, 5, 1) + b"12345", "unknown answer 1"),
    ],
)
def test_an_answer_over_a_limit_is_a_wire_error_of_the_client(answers, error):
    thread, address = answering(answers)
    client = StoreClient(address, rank=1, world_size=WORLD, key=KEY, deadline=Deadline(20))
    with pytest.raises(WireError, match=error):
        client.get("k", deadline=Deadline(20))
    client.close()
    thread.join(20)


def test_answers_to_other_questions_are_passed_over_until_the_deadline():
    thread, address = answering(ANSWER.pack(HERE, 1, 77) + b"x")
    client = StoreClient(address, rank=1, world_size=WORLD, key=KEY, deadline=Deadline(20))
    with pytest.raises(DeadlineExceeded):
        client.get("k", deadline=Deadline(0.3))
    client.close()
    thread.join(20)
