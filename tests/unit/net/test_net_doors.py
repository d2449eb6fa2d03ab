"""A door under pressure: full places, few descriptors, connections that take over a number."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import time

import pytest

from rlx.errors import AuthenticationError
from rlx.net import doors as doors_module
from rlx.net.auth import Facts, Proving, Status
from rlx.net.doors import MAX_STRANGERS, Door, Knock, dispatch, places

KEY = b"a token of these tests"


class House:
    """A door that one test drives by hand."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.guests: list[socket.socket] = []
        self.door = Door(
            self.selector,
            self.listener,
            Facts(0, 2),
            KEY,
            lambda _: Status.WELCOME,
            lambda sock, _: self.guests.append(sock),
        )

    def turn(self, timeout_s: float = 0.5) -> None:
        dispatch(self.selector, timeout_s)
        self.door.expire()

    def close(self) -> None:
        self.door.close()
        for guest in self.guests:
            guest.close()
        self.selector.close()


@pytest.fixture
def house():
    one = House()
    yield one
    one.close()


@pytest.fixture
def few_descriptors():
    """Lowers this process's limit, and puts it back."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower(soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))

    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def come_in(house: House, key: bytes = KEY) -> socket.socket:
    """A true peer's handshake with a door that the same thread drives."""
    sock = socket.create_connection(house.address, timeout=0.01)
    proving = Proving(Facts(1, 2, peer=0), key, "the house")
    sock.sendall(proving.hello)
    end = time.monotonic() + 10
    while proving.needed:
        assert time.monotonic() < end, "no answer"
        house.turn(0.01)
        with contextlib.suppress(TimeoutError):
            sock.sendall(proving.feed(sock.recv(proving.needed)))
    return sock


@pytest.mark.parametrize("newcomer_first", [True, False])
def test_a_connection_that_takes_over_a_descriptor_is_not_taken_for_the_old_one(
    house, monkeypatch, newcomer_first
):
    """With every place taken, a newcomer replaces the oldest stranger, and gets its number. What
    was ready of the old one in the same turn is then about nobody."""
    monkeypatch.setattr(house.door, "_places", 1)
    monkeypatch.setattr(doors_module, "_GIVE_UP_PLACE_S", 0.05)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            old = stack.enter_context(socket.create_connection(house.address))
            house.turn()
            time.sleep(0.12)
            house.turn(0)  # The door, whose places are full, listens again from here on.
            if newcomer_first:
                stack.enter_context(socket.create_connection(house.address))
                old.sendall(b"r")
            else:
                old.sendall(b"r")
                stack.enter_context(socket.create_connection(house.address))
            house.turn()
            house.turn(0)
        house.door._places = 100
        with come_in(house):
            assert len(house.guests) == 1


def test_a_door_takes_a_part_of_the_descriptors_that_there_may_be(few_descriptors):
    assert places() == MAX_STRANGERS
    few_descriptors(200)
    assert places() == 50
    few_descriptors(12)
    assert places() == 4


def test_without_a_free_descriptor_a_door_rests_and_then_goes_on(house, few_descriptors):
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(socket.create_connection(house.address))
        used = max(map(int, os.listdir("/proc/self/fd")))
        few_descriptors(used + 1)
        stuffing = []
        with contextlib.suppress(OSError):
            while True:
                stuffing.append(os.dup(0))
        turns, end, busy_s = 0, time.monotonic() + 0.5, time.process_time()
        while time.monotonic() < end:
            house.turn(0.02)
            turns += 1
        assert time.process_time() - busy_s < 0.3, f"{turns} turns: it spins"
        for number in stuffing:
            os.close(number)
        few_descriptors(used + 100)
        waiting.sendall(b"GET / HTTP/1.1")
        waiting.settimeout(0.01)
        end = time.monotonic() + 5
        answer = None
        while answer is None and time.monotonic() < end:
            house.turn(0.05)
            with contextlib.suppress(TimeoutError):
                answer = waiting.recv(1)
        assert answer == b"", "the stranger that waited was never looked at"
        stack.enter_context(come_in(house))


def test_a_knock_that_gets_no_descriptor_is_tried_again(house, monkeypatch):
    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    arrived: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        knock = Knock(
            selector, house.address, Facts(1, 2, peer=0), KEY, lambda sock, _: arrived.append(sock)
        )
        with monkeypatch.context() as patch:
            patch.setattr(doors_module.socket, "socket", no_socket)
            assert 0 < knock.retry() < 1
        assert "Too many open files" in str(knock)
        end = time.monotonic() + 10
        while not knock.let_in and time.monotonic() < end:
            dispatch(selector, min(0.01, knock.retry()))
            house.turn(0.01)
        knock.close()
    assert len(arrived) == 1
    arrived[0].close()


def test_a_wrong_token_gets_in_by_none_of_these_ways(house):
    with pytest.raises(AuthenticationError):
        come_in(house, b"another token")
    assert house.guests == []
