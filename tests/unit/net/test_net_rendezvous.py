"""How ranks find each other: the store, its clients and strangers, and the meeting itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import warnings

import pytest
from net_tcp_kit import (
    close_all,
    in_threads,
    listeners,
    meet,
    on_all,
    open_descriptors,
    our_threads,
    receive,
    send,
)

from rlx.errors import (
    AuthenticationError,
    ConnectError,
    DeadlineExceeded,
    LimitExceeded,
    Malformed,
    RlxError,
    TransportError,
    UsageError,
)
from rlx.net import store_server as server_module
from rlx.net.deadline import Deadline
from rlx.net.doors import open_listener
from rlx.net.rendezvous import _read_address, join_mesh, read_table
from rlx.net.store import REQUEST
from rlx.net.store_client import StoreClient
from rlx.net.store_server import StoreServer
from rlx.net.tcp import TcpTransport


@contextlib.contextmanager
def served(world_size=200, **options):
    server = StoreServer(listeners(1)[0], world_size=world_size, **options)
    try:
        yield server
    finally:
        server.close()


def client_of(server, rank=1, world_size=200, seconds=10.0, **options):
    return StoreClient(
        server.address, rank=rank, world_size=world_size, deadline=Deadline(seconds), **options
    )


def test_a_value_is_seen_by_server_and_clients_and_waited_for():
    with served() as server:
        one, two = client_of(server, 1), client_of(server, 2)
        assert two.peek("a", deadline=Deadline(5)) is None
        waiting = [
            lambda: two.get("a", deadline=Deadline(5)),
            lambda: server.get("a", deadline=Deadline(5)),
            lambda: (time.sleep(0.1), one.set("a", b"\x00value"))[1],
        ]
        assert in_threads(waiting)[:2] == [b"\x00value"] * 2
        server.set("b", b"from rank 0")
        assert one.get("b", deadline=Deadline(5)) == b"from rank 0"
        assert one.peek("b", deadline=Deadline(5)) == b"from rank 0"
        one.close()
        two.close()


def test_a_wait_for_a_key_ends_at_its_deadline_and_the_client_stays_usable():
    with served() as server:
        client = client_of(server)
        for store in (client, server):
            with pytest.raises(DeadlineExceeded, match="'never'"):
                store.get("never", deadline=Deadline(0.1))
        server.set("never", b"late")
        client.set("other", b"1")
        assert client.get("never", deadline=Deadline(5)) == b"late"
        client.close()


def test_a_key_is_written_once():
    with served() as server:
        client = client_of(server)
        client.set("k", b"1")
        client.set("k", b"1")
        for store in (client, server):
            with pytest.raises(UsageError, match="two processes"):
                store.set("k", b"2")
        assert server.get("k", deadline=Deadline(1)) == b"1"
        client.close()


def test_keys_values_and_the_table_are_bounded(monkeypatch):
    with served() as server:
        client = client_of(server)
        for store in (client, server):
            with pytest.raises(UsageError, match="256"):
                store.set("k" * 257, b"")
            with pytest.raises(UsageError, match="limit"):
                store.set("k", bytes((1 << 20) + 1))
        client.set("k", bytes(1 << 20))
        monkeypatch.setattr(server_module, "MAX_KEYS", 1)
        for store in (client, server):
            with pytest.raises(LimitExceeded, match="full"):
                store.set("l", b"")
        client.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST.pack(9, 1, 0, 1) + b"k",
        REQUEST.pack(1, 257, 0, 1),
        REQUEST.pack(1, 0, 0, 1),
        REQUEST.pack(1, 1, 0xFFFFFFFF, 1),
        REQUEST.pack(2, 1, 5, 1),
    ],
)
def test_a_client_that_breaks_the_protocol_is_dropped_and_nobody_else(request_bytes):
    with served() as server:
        bad, good = client_of(server, 1), client_of(server, 2)
        bad._socket.settimeout(5)
        bad._socket.sendall(request_bytes)
        assert bad._socket.recv(1) == b""
        good.set("k", b"v")
        assert good.get("k", deadline=Deadline(5)) == b"v"
        with pytest.raises(ConnectError, match="coordinator"):
            bad.get("k", deadline=Deadline(5))
        bad.close()
        good.close()


def test_a_client_of_a_closed_store_is_told():
    with served() as server:
        client = client_of(server)
    with pytest.raises(ConnectError, match="gone"):
        client.get("k", deadline=Deadline(5))
    client.close()
    with pytest.raises(TransportError, match="closed"):
        client.get("k", deadline=Deadline(5))
    with pytest.raises(TransportError, match="closed"):
        server.set("k", b"")


def test_a_client_without_the_token_or_of_another_job_is_refused():
    with served(job="a", key=b"token") as server:
        with pytest.raises(AuthenticationError, match="token"):
            client_of(server, job="a", key=b"other")
        with pytest.raises(ConnectError, match=r"'b'.*'a'"):
            client_of(server, job="b", key=b"token")
        client_of(server, job="a", key=b"token").close()


def test_a_hundred_clients_at_once_are_all_answered_with_wrong_ones_among_them():
    count = 100
    with served(key=b"token") as server, contextlib.ExitStack() as stack:
        start = threading.Barrier(count)

        def client(number):
            start.wait(10)
            if number % 5 == 1:
                stranger = stack.enter_context(socket.create_connection(server.address))
                stranger.sendall(b"\x80\x04garbage" * number)
                return "stranger"
            key = b"wrong" if number % 5 == 2 else b"token"
            try:
                store = client_of(server, number, seconds=20, key=key)
            except AuthenticationError:
                return "refused"
            store.set(f"rank {number}", b"here")
            found = store.get("all", deadline=Deadline(20))
            store.close()
            return found

        def publish():
            for number in range(count):
                if number % 5 not in (1, 2) and number:
                    server.get(f"rank {number}", deadline=Deadline(20))
            server.set("all", b"table")

        bodies = [lambda n=n: client(n) for n in range(1, count)]
        answers = in_threads([*bodies, lambda: start.wait(10), publish])
        assert answers.count("stranger") == 20
        assert answers.count("refused") == 20
        assert answers.count(b"table") == 59


def test_ranks_meet_and_the_meeting_leaves_nothing_open():
    before, threads = open_descriptors(), our_threads()
    made = meet(4, token=b"t", job="a-job")
    assert [type(t) for t in made] == [TcpTransport] * 4, made
    send(made[3], 1, 1, b"x")
    assert receive(made[1], 3, 1, 1) == b"x"
    assert "rlx-store" not in our_threads()
    on_all(made, lambda t: t.close())
    assert open_descriptors() == before
    assert our_threads() == threads


def test_a_world_of_one_needs_no_meeting():
    alone = join_mesh(0, 1, ("192.0.2.1", 9), deadline=Deadline(1))
    assert alone.bound_addresses == ()
    alone.close()


def test_an_address_is_used_as_it_is_given():
    made = meet(2, host="127.0.0.2")
    assert [type(t) for t in made] == [TcpTransport] * 2, made
    assert made[0].bound_addresses[0][0] == "127.0.0.2"
    close_all(made)
    taken = open_listener("127.0.0.2", 0)
    port = taken.getsockname()[1]
    with pytest.raises(ConnectError, match=rf"127\.0\.0\.2:{port}.*port 0 or another"):
        join_mesh(0, 2, ("127.0.0.2", port), deadline=Deadline(1))
    taken.close()


def test_a_port_is_free_again_as_soon_as_it_is_freed():
    with open_listener("127.0.0.1", 0) as taken:
        where = taken.getsockname()
        with pytest.raises(ConnectError, match="in use"):
            join_mesh(0, 2, where, deadline=Deadline(5))
    made = in_threads([lambda r=r: join_mesh(r, 2, where, deadline=Deadline(10)) for r in (0, 1)])
    assert [type(t) for t in made] == [TcpTransport] * 2, made
    close_all(made)


def test_the_ranks_that_never_came_are_named_on_every_rank():
    door = open_listener("127.0.0.1", 0)
    where = door.getsockname()

    def rank(number, seconds):
        own = {"coordinator_listener": door} if number == 0 else {}
        return join_mesh(number, 4, where, deadline=Deadline(seconds), **own)

    for_all = in_threads([lambda: rank(0, 0.5), lambda: rank(2, 5.0)])
    for error in for_all:
        assert isinstance(error, DeadlineExceeded), error
        assert error.peers == (1, 3)
        assert "rank 1, rank 3" in str(error)


def test_a_rank_that_gives_up_before_rank_0_names_who_never_came_too():
    door = open_listener("127.0.0.1", 0)
    where = door.getsockname()
    early, late = in_threads(
        [
            lambda: join_mesh(1, 3, where, deadline=Deadline(0.5)),
            lambda: join_mesh(0, 3, where, deadline=Deadline(1), coordinator_listener=door),
        ]
    )
    assert isinstance(early, DeadlineExceeded)
    assert early.peers == (2,)
    assert isinstance(late, DeadlineExceeded)
    assert late.peers == (2,)


def test_a_coordinator_that_is_not_there_is_named():
    with open_listener("127.0.0.1", 0) as gone:
        where = gone.getsockname()
    with pytest.raises(DeadlineExceeded, match=f"127.0.0.1:{where[1]}: Connection refused"):
        join_mesh(1, 2, where, deadline=Deadline(0.3))


def test_two_processes_that_claim_one_rank_are_told():
    door = open_listener("127.0.0.1", 0)
    where = door.getsockname()
    outcome = in_threads(
        [
            lambda: join_mesh(0, 3, where, deadline=Deadline(1.5), coordinator_listener=door),
            lambda: join_mesh(1, 3, where, deadline=Deadline(1.5)),
            lambda: join_mesh(1, 3, where, deadline=Deadline(1.5)),
        ]
    )
    assert any(isinstance(e, UsageError) and "two processes" in str(e) for e in outcome), outcome
    assert all(isinstance(e, RlxError) for e in outcome)


def test_without_a_token_the_meeting_is_on_loopback_only():
    for coordinator, bind in [
        (("192.0.2.1", 1), None),
        (("0.0.0.0", 1), None),
        (("127.0.0.1", 1), "0.0.0.0"),
    ]:
        with pytest.raises(UsageError, match="token"):
            join_mesh(0, 2, coordinator, bind=bind, deadline=Deadline(1))


def test_every_interface_needs_a_token_and_warns():
    door = open_listener("0.0.0.0", 0)
    port = door.getsockname()[1]

    def first():
        with pytest.warns(RuntimeWarning, match=r"0\.0\.0\.0 means every network interface"):
            return join_mesh(
                0,
                3,
                ("0.0.0.0", port),
                token=b"t",
                deadline=Deadline(10),
                coordinator_listener=door,
            )

    def other(rank):
        return join_mesh(rank, 3, ("127.0.0.1", port), token=b"t", deadline=Deadline(10))

    made = in_threads([first, lambda: other(1), lambda: other(2)])
    assert [type(t) for t in made] == [TcpTransport] * 3, made
    assert made[0].bound_addresses[0][0] == "0.0.0.0"
    assert made[1].bound_addresses[0][0] == "127.0.0.1"
    close_all(made)


def test_loopback_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = meet(2)
    assert [type(t) for t in made] == [TcpTransport] * 2, made
    close_all(made)


def test_a_port_that_nobody_could_know_is_refused():
    with pytest.raises(UsageError, match="coordinator_listener"):
        join_mesh(0, 2, ("127.0.0.1", 0), deadline=Deadline(1))


def test_a_table_that_rank_0_would_not_publish_is_malformed():
    good = b"addresses of all ranks\n127.0.0.1 5\n::1 6"
    assert read_table(1, 2, good, "127.0.0.9", Deadline(1)) == [("127.0.0.1", 5), ("::1", 6)]
    for bad in (b"", b"addresses of all ranks\n127.0.0.1 5", good + b"\n::1 7", b"\xff\n1\n2"):
        with pytest.raises(Malformed):
            read_table(1, 2, bad, "127.0.0.9", Deadline(1))
    for line in ("node01 5", "127.0.0.1 0", "127.0.0.1 70000", "127.0.0.1", "::1 -5"):
        with pytest.raises(Malformed):
            _read_address(line, "127.0.0.9")
    assert _read_address(" 5", "127.0.0.9") == ("127.0.0.9", 5)
