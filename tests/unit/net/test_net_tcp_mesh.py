"""How a mesh is made: late peers, strangers, other jobs, and where it may listen."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from net_tcp_kit import (
    in_threads,
    listeners,
    on_all,
    open_descriptors,
    open_mesh,
    our_threads,
    receive,
    send,
    tcp_mesh,
)

from rlx.errors import AuthenticationError, ConnectError, DeadlineExceeded, UsageError
from rlx.net import doors as doors_module
from rlx.net.addresses import is_loopback, is_wildcard, show_address
from rlx.net.auth import Channel, Facts, Proving
from rlx.net.deadline import Deadline
from rlx.net.tcp import TcpTransport


def join(rank, world_size, doors, addresses, seconds=10.0, **options):
    return TcpTransport.from_listener(
        rank, world_size, doors[rank], addresses, deadline=Deadline(seconds), **options
    )


def close_all(made):
    in_threads([t.close for t in made if isinstance(t, TcpTransport)])


def test_a_world_of_one_has_no_connection_and_no_thread():
    before = our_threads()
    with tcp_mesh(1) as (alone,):
        assert our_threads() == before
        assert alone.world_size == 1


def test_every_rank_listened_on_loopback_and_no_port_stays_open():
    with tcp_mesh(3, token=b"secret") as mesh:
        for transport in mesh:
            (address,) = transport.bound_addresses
            assert is_loopback(address[0])
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, 2)


def test_a_late_peer_is_waited_for():
    with contextlib.ExitStack() as stack:
        door = stack.enter_context(listeners(1)[0])
        late = socket.socket()
        late.bind(("127.0.0.1", 0))  # Bound and not listening: whoever comes is refused.
        addresses = [late.getsockname(), door.getsockname()]

        def first():
            time.sleep(0.4)
            late.listen()
            return join(0, 2, [late, door], addresses)

        made = in_threads([first, lambda: join(1, 2, [late, door], addresses)])
        assert all(isinstance(t, TcpTransport) for t in made), made
        close_all(made)


def test_the_ranks_that_never_came_are_named():
    doors = listeners(4)
    addresses = [door.getsockname() for door in doors]
    doors[1].close()
    late = in_threads(
        [
            lambda: join(0, 4, doors, addresses, seconds=0.6),
            lambda: join(2, 4, doors, addresses, seconds=0.6),
        ]
    )
    assert all(isinstance(error, DeadlineExceeded) for error in late), late
    assert late[0].peers == (1, 3)
    assert late[1].peers == (1, 3)
    assert "rank 1, rank 3" in str(late[0])
    assert f"rank 1 at {show_address(addresses[1])}: Connection refused" in str(late[1])
    doors[3].close()


def test_a_wrong_token_is_told_to_the_connecting_side_and_accepting_goes_on():
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    spare = listeners(1)[0]

    def wrong_then_right():
        with pytest.raises(AuthenticationError, match="same token") as caught:
            TcpTransport.from_listener(1, 2, spare, addresses, token=b"wrong-secret")
        assert "secret" not in str(caught.value)
        return join(1, 2, doors, addresses, token=b"right-secret")

    made = in_threads(
        [lambda: join(0, 2, doors, addresses, token=b"right-secret"), wrong_then_right]
    )
    assert all(isinstance(t, TcpTransport) for t in made), made
    send(made[0], 1, 1, b"x")
    assert receive(made[1], 0, 1, 1) == b"x"
    close_all(made)


@pytest.mark.parametrize(
    ("other", "here", "there"),
    [({"job": "b"}, "'b'", "'a'"), ({"world_size": 3}, "world size 3", "2")],
)
def test_a_rank_of_another_job_or_world_is_told_both_values(other, here, there):
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    world_size = other.get("world_size", 2)
    stranger_addresses = addresses + [addresses[1]] * (world_size - 2)
    spare = listeners(1)[0]

    def stranger():
        try:
            TcpTransport.from_listener(
                1, world_size, spare, stranger_addresses, job=other.get("job", "a")
            )
        finally:
            right.append(join(1, 2, doors, addresses, job="a"))

    right: list[TcpTransport] = []
    first, error = in_threads([lambda: join(0, 2, doors, addresses, job="a"), stranger])
    assert isinstance(error, ConnectError), error
    assert here in str(error)
    assert there in str(error)
    assert isinstance(first, TcpTransport)
    close_all([first, *right])


def test_a_rank_number_that_is_taken_twice_is_refused_the_second_time():
    doors = listeners(3)
    addresses = [door.getsockname() for door in doors]
    first = threading.Thread(target=lambda: made.append(join(0, 3, doors, addresses)))
    made: list[TcpTransport] = []
    first.start()
    one = threading.Thread(target=lambda: made.append(join(1, 3, doors, addresses)))
    one.start()
    time.sleep(0.3)
    with pytest.raises(ConnectError, match="two processes claim this rank"):
        TcpTransport.from_listener(1, 3, listeners(1)[0], addresses, deadline=Deadline(5))
    made.append(join(2, 3, doors, addresses))
    first.join(10)
    one.join(10)
    assert sorted(t.rank for t in made) == [0, 1, 2]
    close_all(made)


def test_strangers_of_all_kinds_do_not_keep_the_true_peers_out():
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    with contextlib.ExitStack() as stack:
        for number in range(60):
            stranger = stack.enter_context(socket.create_connection(addresses[0]))
            if number % 4 == 1:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
            elif number % 4 == 2:
                hello = Proving(Facts(1, 2, "", 0, Channel.DATA), b"wrong", "x").hello
                stranger.sendall(hello[:20])
            elif number % 4 == 3:
                stranger.sendall(b"\x80\x04\x95" + bytes(1000))
        started = time.monotonic()
        made = in_threads([lambda r=r: join(r, 2, doors, addresses, token=b"t") for r in (0, 1)])
        assert all(isinstance(t, TcpTransport) for t in made), made
        assert time.monotonic() - started < 3
        close_all(made)


def test_idle_strangers_are_dropped_when_their_time_is_up(monkeypatch):
    monkeypatch.setattr(doors_module, "STRANGER_S", 0.2)
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    waiting = threading.Thread(
        target=lambda: in_threads([lambda: join(0, 2, doors, addresses, seconds=1.5)])
    )
    waiting.start()
    with socket.create_connection(addresses[0]) as idle:
        idle.settimeout(1.2)
        assert idle.recv(1) == b""
    waiting.join()
    doors[1].close()


def test_more_strangers_than_there_are_places_do_not_keep_the_true_peers_out(monkeypatch):
    monkeypatch.setattr(doors_module, "MAX_STRANGERS", 4)
    doors = listeners(2)
    addresses = [door.getsockname() for door in doors]
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(socket.create_connection(addresses[0]))
        made = in_threads([lambda r=r: join(r, 2, doors, addresses) for r in (0, 1)])
        assert all(isinstance(t, TcpTransport) for t in made), made
        close_all(made)


def test_without_a_token_only_loopback_is_bound_and_connected():
    with socket.create_server(("0.0.0.0", 0)) as wide, pytest.raises(UsageError, match="token"):
        TcpTransport.from_listener(0, 2, wide, [("127.0.0.1", 1), ("127.0.0.1", 2)])
    for far in ("192.0.2.1", "node01", "::", "2001:db8::1"):
        with pytest.raises(UsageError, match="token") as caught:
            TcpTransport.from_listener(0, 2, listeners(1)[0], [("127.0.0.1", 1), (far, 2)])
        assert show_address((far, 2)) in str(caught.value)


def test_with_a_token_every_interface_may_be_bound():
    doors = [socket.create_server(("0.0.0.0", 0)) for _ in range(2)]
    addresses = [("127.0.0.1", door.getsockname()[1]) for door in doors]
    made = in_threads([lambda r=r: join(r, 2, doors, addresses, token=b"t") for r in (0, 1)])
    assert all(isinstance(t, TcpTransport) for t in made), made
    close_all(made)


def test_ipv6_loopback_works_like_ipv4():
    try:
        doors = [socket.create_server(("::1", 0), family=socket.AF_INET6) for _ in range(2)]
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    addresses = [door.getsockname() for door in doors]
    made = in_threads([lambda r=r: join(r, 2, doors, addresses) for r in (0, 1)])
    assert all(isinstance(t, TcpTransport) for t in made), made
    send(made[0], 1, 1, b"x")
    assert receive(made[1], 0, 1, 1) == b"x"
    close_all(made)


def test_arguments_that_cannot_work_are_refused_and_the_listener_is_closed():
    here = [("127.0.0.1", 1), ("127.0.0.1", 2)]
    for words, arguments, options in [
        ("no rank 2", (2, 2), {}),
        ("heap_bytes", (0, 2), {"heap_bytes": -1}),
        ("heartbeat_s", (0, 2), {"heartbeat_s": 0}),
        ("one a rank", (0, 3), {}),
        ("64 bytes", (0, 2), {"job": "j" * 65}),
        ("empty", (0, 2), {"token": b""}),
    ]:
        door = listeners(1)[0]
        with pytest.raises(UsageError, match=words):
            TcpTransport.from_listener(*arguments, door, here, **options)
        assert door.fileno() == -1


def test_a_mesh_that_failed_leaves_nothing_open():
    before = open_descriptors()
    doors = listeners(3)
    addresses = [door.getsockname() for door in doors]
    doors[2].close()
    failed = in_threads([lambda r=r: join(r, 3, doors, addresses, seconds=0.3) for r in (0, 1)])
    assert all(isinstance(error, DeadlineExceeded) for error in failed)
    assert open_descriptors() == before


def test_a_mesh_that_was_closed_leaves_nothing_open():
    before, threads = open_descriptors(), our_threads()
    mesh = open_mesh(3)
    assert open_descriptors() != before
    on_all(mesh, lambda t: t.close())
    on_all(mesh, lambda t: t.close())
    assert open_descriptors() == before
    assert our_threads() == threads


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("::ffff:127.0.0.1", True, False),
        ("::ffff:10.0.0.1", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("", False, True),
        ("localhost", False, False),
        ("fe80::1%eth0", False, False),
    ],
)
def test_addresses_are_what_they_are(host, loopback, wildcard):
    assert is_loopback(host) is loopback
    assert is_wildcard(host) is wildcard
