"""The proxy itself, between two plain sockets: what passes, what does not, and what is left."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest

from rlx.errors import UsageError
from rlx.testing import FaultProxy, LinkFault, LinkFaultKind
from rlx.testing.flows import Flow
from rlx.testing.laws import nothing_left_open


@contextlib.contextmanager
def connected():
    """A route, the end that connected, and the end that accepted."""
    with (
        FaultProxy() as proxy,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.settimeout(10)
        route = proxy.route(listener.getsockname())
        with socket.create_connection(route.address, timeout=10) as near:
            far, _ = listener.accept()
            with far:
                far.settimeout(10)
                yield route, near, far


def receive(sock, size):
    got = b""
    while len(got) < size and (more := sock.recv(size - len(got))):
        got += more
    return got


def happened(route, seconds=10):
    end = time.monotonic() + seconds
    while route.happened_s is None:
        assert time.monotonic() < end, "the fault did not happen"
        time.sleep(0.002)
    return route.happened_s


def test_without_a_fault_bytes_pass_both_ways_and_ends_are_passed_on():
    content = os.urandom(3_000_000)
    with nothing_left_open(), connected() as (route, near, far):
        near.sendall(b"hello")
        assert receive(far, 5) == b"hello"
        far.settimeout(0.01)
        sent = 0
        while sent < len(content):
            with contextlib.suppress(TimeoutError):
                sent += far.send(content[sent : sent + 100_000])
            if sent > 500_000:
                break
        far.shutdown(socket.SHUT_WR)
        assert receive(near, len(content)) == content[:sent]
        assert near.recv(1) == b""
        near.sendall(b"still")
        far.settimeout(10)
        assert receive(far, 5) == b"still"
        assert route.happened_s is None


@pytest.mark.parametrize(
    "fault",
    [
        LinkFault(LinkFaultKind.DELAY, 10, 0.05),
        LinkFault(LinkFaultKind.THROTTLE, 10, 2e5, for_bytes=10_000),
        LinkFault(LinkFaultKind.FRAGMENT, 10, 1.0, for_bytes=1000),
    ],
    ids=lambda fault: fault.kind,
)
def test_what_is_late_slow_or_in_pieces_is_whole(fault):
    content = os.urandom(60_000)
    with nothing_left_open(), connected() as (route, near, far):
        route.inject(fault)
        begun = time.monotonic()
        near.sendall(content)
        assert receive(far, len(content)) == content
        assert time.monotonic() - begun >= {"delay": 0.05, "throttle": 0.04}.get(fault.kind, 0)
        assert happened(route) >= begun


class Recorder:
    """A sink that records how much it was given at a time."""

    def __init__(self):
        self.sizes = []

    def send(self, piece):
        self.sizes.append(len(piece))
        return len(piece)


def test_fragments_are_as_small_as_they_are_said_to_be_and_for_as_long():
    sink = Recorder()
    flow = Flow(None, sink, backward=False)
    fault = LinkFault(LinkFaultKind.FRAGMENT, amount=3.0, for_bytes=7)
    flow.hold(flow.begin(fault, memoryview(bytes(100))), 0.0)
    flow.write(0.0)
    assert sink.sizes == [3, 3, 3, 91]


def test_a_cut_ends_both_ends_in_order_after_what_passed_before():
    with nothing_left_open(), connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.CUT, after_bytes=5))
        near.sendall(b"beforeafter"[:5] + b"after")
        assert receive(far, 100) == b"befor"
        assert far.recv(1) == b""
        assert near.recv(1) == b""


def test_a_reset_is_a_reset_at_both_ends():
    with nothing_left_open(), connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.RESET))
        happened(route)
        for sock in (near, far):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)


@pytest.mark.parametrize("backward", [False, True])
def test_a_half_open_link_passes_one_way_and_tells_nobody(backward):
    with nothing_left_open(), connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.HALF_OPEN, backward=backward))
        happened(route)
        dumb, heard = (far, near) if backward else (near, far)
        heard.sendall(b"passes")
        assert receive(dumb, 6) == b"passes"
        dumb.sendall(b"lost")
        dumb.shutdown(socket.SHUT_WR)
        heard.settimeout(0.2)
        with pytest.raises(TimeoutError):
            heard.recv(1)


def test_a_vanished_host_swallows_everything_even_the_end():
    with nothing_left_open(), connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.VANISH))
        happened(route)
        for sock in (near, far):
            sock.sendall(b"lost")
        near.shutdown(socket.SHUT_WR)
        for sock in (near, far):
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1)


def test_one_byte_is_changed_and_all_others_are_as_they_were():
    content = os.urandom(1000)
    with connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.CORRUPT, after_bytes=700))
        near.sendall(content)
        got = receive(far, 1000)
        assert [place for place in range(1000) if got[place] != content[place]] == [700]


def test_some_bytes_pass_twice():
    content = bytes(range(250))
    with connected() as (route, near, far):
        route.inject(LinkFault(LinkFaultKind.DUPLICATE, after_bytes=100, amount=7))
        near.sendall(content)
        assert receive(far, 257) == content[:107] + content[100:107] + content[107:]


def test_a_target_that_is_not_there_is_a_reset():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with nothing_left_open(), FaultProxy() as proxy:
        route = proxy.route(address)
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection(route.address, timeout=10) as near,
        ):
            near.recv(1)


def test_closing_twice_is_fine_and_closes_the_links():
    with nothing_left_open(), connected() as (route, near, _):
        route._proxy.close()
        route._proxy.close()
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(1) == b""


def test_a_fault_is_a_value_drawn_from_a_seed_and_says_what_it_is():
    kinds = list(LinkFaultKind)
    drawn = [LinkFault.draw(seed, kinds=kinds) for seed in range(300)]
    assert drawn == [LinkFault.draw(seed, kinds=kinds) for seed in range(300)]
    assert {fault.kind for fault in drawn} == set(kinds)
    fault = LinkFault(LinkFaultKind.DELAY, 10, 0.5, for_bytes=7)
    assert str(fault) == "after 10 bytes: bytes come 0.5 s late, for 7 bytes"
    with pytest.raises(UsageError):
        LinkFault(LinkFaultKind.DELAY, -1)
