"""`FaultProxy`: a proxy on loopback between ranks, which does to a link what networks do."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rlx.errors import ClosedError
from rlx.net import TcpTransport
from rlx.testing.flows import Flow, reset
from rlx.testing.links import LinkFault, LinkFaultKind
from rlx.testing.meshes import Address, tcp_mesh

_LONGEST_SLEEP_S: Final = 1.0
_JOIN_S: Final = 10.0
_DIALLING: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class Route:
    """One proxied link. Connect to `address` instead of to the target."""

    def __init__(self, proxy: FaultProxy, target: Address, listener: socket.socket) -> None:
        self.address: tuple[str, int] = listener.getsockname()
        self.happened_s: float | None = None
        self.passed_bytes = 0
        self._proxy = proxy
        self._target = target
        self._listener = listener
        self._pairs: list[_Pair] = []
        self._fault: LinkFault | None = None
        self._begins_at = 0

    def inject(self, fault: LinkFault) -> None:
        """Have `fault` happen, once, in place of one that has not happened yet.

        A delay, a throttle or a fragmentation under way ends. `happened_s` is None until the fault
        begins, and then when it did (monotonic seconds). May be called from any thread.
        """
        self._proxy._call(lambda: self._arm(fault))

    def heal(self) -> None:
        """Let nothing more happen; what has broken stays broken."""
        self._proxy._call(lambda: self._arm(None))

    # In the proxy's thread

    def _arm(self, fault: LinkFault | None) -> None:
        for flow in self._flows():
            flow.heal()
        self._fault = fault
        self.happened_s = None
        self._begins_at = self.passed_bytes
        if fault is not None:
            self._begins_at += fault.after_bytes
            if fault.after_bytes == 0 and fault.kind not in _OF_BYTES and self._pairs:
                self._happen(fault, None, memoryview(b""))

    def _flows(self) -> list[Flow]:
        return [flow for pair in self._pairs for flow in pair.flows]

    def _passes(self, pair: _Pair, flow: Flow, data: memoryview, now_s: float) -> None:
        """Bytes that one flow has read: hold them, and see whether something happens to them."""
        fault = self._fault
        before = self._begins_at - self.passed_bytes
        if fault is not None and before < len(data) and self._concerns(fault, pair):
            before = max(0, before)
            flow.hold(data[:before], now_s)
            flow.write(now_s)
            data = self._happen(fault, flow, data[before:])
            self.passed_bytes += before
        flow.hold(data, now_s)
        self.passed_bytes += len(data)

    def _concerns(self, fault: LinkFault, pair: _Pair) -> bool:
        return fault.connection is None or self._pairs.index(pair) == fault.connection

    def _happen(self, fault: LinkFault, at: Flow | None, piece: memoryview) -> memoryview:
        self._fault = None
        self.happened_s = time.monotonic()
        for pair in self._pairs:
            if not self._concerns(fault, pair):
                continue
            if fault.kind is LinkFaultKind.RESET:
                self._proxy._end(pair, reset_ends=True)
                continue
            for flow in pair.flows:
                if flow is at:
                    piece = flow.begin(fault, piece)
                elif fault.kind not in _OF_BYTES:
                    flow.begin(fault, memoryview(b""))
                if fault.kind is LinkFaultKind.CUT:
                    flow.tell_end()
        return piece


_OF_BYTES: Final = (LinkFaultKind.CORRUPT, LinkFaultKind.DUPLICATE)


class _Pair:
    """A connection from one rank, and the one that it was continued with."""

    def __init__(self, route: Route, near: socket.socket, far: socket.socket) -> None:
        self.route = route
        self.near = near
        self.far = far
        self.dialling = True
        self.ended = False
        self.flows = (Flow(near, far, backward=False), Flow(far, near, backward=True))

    @property
    def over(self) -> bool:
        """Whether nothing can pass any more, and nobody needs to be told of it."""
        broken = any(flow.broken for flow in self.flows)
        if broken and not any(flow.swallows for flow in self.flows):
            return True
        return all(flow.source_ended or flow.broken for flow in self.flows) and not any(
            flow.due_s() < float("inf") for flow in self.flows
        )

    def interest(self, sock: socket.socket, now_s: float) -> int:
        """The events of one of its sockets that it can use now."""
        if self.dialling:
            return _WRITE if sock is self.far else 0
        events = 0
        for flow in self.flows:
            if flow.source is sock and flow.wants_to_read:
                events |= _READ
            if flow.sink is sock and flow.wants_to_write(now_s):
                events |= _WRITE
        return events


class FaultProxy:
    """Any number of links through one thread. A context manager; `close` closes everything.

    Each link holds at most about half a megabyte; a rank that does not read is not read for.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, _READ, None)
        self._pairs: set[_Pair] = set()
        self._listeners: list[socket.socket] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rlx-fault-proxy", daemon=True)
        self._thread.start()

    def route(self, target: Address) -> Route:
        """A new link to the listener at `target`."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        made = Route(self, target, listener)
        self._listeners.append(listener)
        self._call(lambda: self._follow_listener(listener, made))
        return made

    def close(self) -> None:
        """Close every link, without a word to those who use it. Twice is fine."""
        self._closing = True
        self._wake()
        self._thread.join(_JOIN_S)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, command: Callable[[], None]) -> None:
        """Have the proxy's thread do something, and return when it has."""
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self._commands.append(run)
        self._wake()
        if not done.wait(_JOIN_S):
            raise ClosedError("the proxy is closed")

    def _wake(self) -> None:
        # A full pipe has woken it already; a closed one has no more use.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_writer.send(b"\0")

    # In the thread

    def _follow_listener(self, listener: socket.socket, route: Route) -> None:
        self._selector.register(listener, _READ, route)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            for pair in list(self._pairs):
                self._end(pair)
            for listener in self._listeners:
                listener.close()
            while self._commands:
                self._commands.popleft()()
            self._selector.close()
            self._wake_reader.close()
            self._wake_writer.close()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._time_to_sleep()):
            if key.data is None:
                self._drain_wakes()
            elif isinstance(key.data, Route):
                self._accept(key.data)
            else:
                self._move(key.data, key.fileobj, mask)
        while self._commands:
            self._commands.popleft()()
        now_s = time.monotonic()
        for pair in list(self._pairs):
            for flow in pair.flows:
                if not pair.dialling and (flow.due_s() <= now_s or flow.source_ended or flow.cut):
                    flow.write(now_s)
            if pair.over:
                self._end(pair, reset_ends=any(flow.broken for flow in pair.flows))
            else:
                self._follow(pair, now_s)

    def _time_to_sleep(self) -> float:
        now_s = time.monotonic()
        sleep_s = _LONGEST_SLEEP_S
        for pair in self._pairs:
            for flow in pair.flows:
                if not flow.wants_to_write(now_s) and not pair.dialling:
                    sleep_s = min(sleep_s, flow.due_s() - now_s)
        return max(0.0, sleep_s)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)

    def _accept(self, route: Route) -> None:
        try:
            near, _ = route._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # It has gone again.
        family = socket.AF_INET6 if ":" in str(route._target[0]) else socket.AF_INET
        far = socket.socket(family, socket.SOCK_STREAM)
        pair = _Pair(route, near, far)
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        route._pairs.append(pair)
        self._pairs.add(pair)
        if far.connect_ex(route._target) not in _DIALLING:
            self._end(pair, reset_ends=True)

    def _move(self, pair: _Pair, sock: object, mask: int) -> None:
        if pair.ended:
            return
        if pair.dialling:
            self._dialled(pair)
            return
        now_s = time.monotonic()
        for flow in pair.flows:
            if flow.source is sock and mask & _READ and flow.wants_to_read:
                data = flow.read()
                if len(data):
                    pair.route._passes(pair, flow, data, now_s)
            if not pair.ended and flow.sink is sock and mask & _WRITE:
                flow.write(now_s)

    def _dialled(self, pair: _Pair) -> None:
        if pair.far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(pair, reset_ends=True)
        else:
            pair.dialling = False

    def _follow(self, pair: _Pair, now_s: float) -> None:
        known = self._selector.get_map()
        for sock in (pair.near, pair.far):
            interest = pair.interest(sock, now_s)
            if sock not in known:
                if interest:
                    self._selector.register(sock, interest, pair)
            elif not interest:
                self._selector.unregister(sock)
            elif self._selector.get_key(sock).events != interest:
                self._selector.modify(sock, interest, pair)

    def _end(self, pair: _Pair, *, reset_ends: bool = False) -> None:
        if pair.ended:
            return
        pair.ended = True
        self._pairs.discard(pair)
        for sock in (pair.near, pair.far):
            if sock in self._selector.get_map():
                self._selector.unregister(sock)
            if reset_ends:
                reset(sock)
            else:
                sock.close()


def proxied(
    proxy: FaultProxy, addresses: list[Address]
) -> tuple[list[list[Address]], dict[tuple[int, int], Route]]:
    """Put a route on every link of a mesh whose ranks listen at `addresses`.

    Returns the addresses to give to each rank, and the routes by (higher rank, lower rank): the
    higher rank of a link is the one that connects.
    """
    given = [list(addresses) for _ in addresses]
    routes = {}
    for rank in range(len(addresses)):
        for peer in range(rank):
            route = proxy.route(addresses[peer])
            routes[rank, peer] = route
            given[rank][peer] = route.address
    return given, routes


def proxied_mesh(
    proxy: FaultProxy, world_size: int, **options: Any
) -> tuple[list[TcpTransport], dict[tuple[int, int], Route]]:
    """The transports of ranks that are threads, and a route for each link, as `proxied` has them.

    `options` are those of `TcpTransport.from_listener`. Without a word about it in them, the ranks
    share no memory, which would pass by the proxy.
    """
    routes: dict[tuple[int, int], Route] = {}

    def route(addresses: list[Address]) -> list[list[Address]]:
        given, found = proxied(proxy, addresses)
        routes.update(found)
        return given

    options.setdefault("shared_memory", False)
    return tcp_mesh(world_size, route, **options), routes
