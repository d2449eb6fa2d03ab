"""Making connections: a door lets in strangers who prove themselves, a knock gets one in.

Both are driven by a selector whose keys carry the function to call when they are ready, so that
one thread makes any number of connections at once and no stranger holds up another. They know the
handshake and sockets, and not what the connections are for.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from rlx.errors import ConnectError
from rlx.net.addresses import Address, resolve, show_address
from rlx.net.auth import Accepting, Facts, Proving, Status

STRANGER_S: Final = 5.0
"""How long an unproven connection may take for its whole handshake."""

MAX_STRANGERS: Final = 256
"""How many unproven connections there may be at once. A real peer needs only milliseconds."""

# A process that may open few descriptors keeps most of them for itself: rank 0 has two doors for a
# while, and connects to its peers and reads its files behind them.
_DESCRIPTORS_A_PLACE: Final = 4
_FEWEST_PLACES: Final = 4

_GIVE_UP_PLACE_S: Final = 0.5
_LOOK_AGAIN_S: Final = 0.1
_ACCEPTS_A_TURN: Final = 64
_BACKLOG: Final = 4096
_FIRST_RETRY_S: Final = 0.01
_LONGEST_RETRY_S: Final = 0.5
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Ready = Callable[[], None]


def dispatch(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Wait for readiness, at most `timeout_s`, and call what it is for."""
    for key, _ in selector.select(timeout_s):
        # One call may close what a later key of the same batch stood for, and the next connection
        # may get its descriptor: the number alone does not say that it is still the same.
        if selector.get_map().get(key.fd) is key:
            key.data()


def places() -> int:
    """How many unproven connections a door has room for, by the descriptors that there may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_STRANGERS
    return min(MAX_STRANGERS, max(_FEWEST_PLACES, soft // _DESCRIPTORS_A_PLACE))


class _Stranger:
    def __init__(self, sock: socket.socket, talk: Accepting, now_s: float) -> None:
        self.socket = sock
        self.talk = talk
        self.came_s = now_s


class Door:
    """Accepts on a listener, which it owns, and hands on the connections of proven peers.

    `judge` is asked about each stranger whose proof holds and whose job agrees; `welcome` gets the
    connection (non-blocking) of those it admits. Everyone else is dropped: garbage, a wrong token,
    silence for STRANGER_S seconds. Call `expire` between two selects.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        own: Facts,
        key: bytes,
        judge: Callable[[Facts], Status],
        welcome: Callable[[socket.socket, Facts], None],
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._own = own
        self._key = key
        self._judge = judge
        self._welcome = welcome
        self._strangers: dict[int, _Stranger] = {}
        self._places = places()
        self._listening = True
        self._look_again_s = 0.0
        self.dropped = 0
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            if len(self._strangers) >= self._places and not self._make_place():
                self._rest()
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # A stranger that is gone already is no matter; without descriptors, wait for some.
                if error.errno in _OUT_OF_RESOURCES and not self._make_place():
                    self._rest()
                    return
                continue
            sock.setblocking(False)
            talk = Accepting(self._own, self._key, self._judge)
            stranger = _Stranger(sock, talk, time.monotonic())
            self._strangers[sock.fileno()] = stranger
            self._selector.register(sock, selectors.EVENT_READ, lambda s=stranger: self._talk(s))

    def _rest(self) -> None:
        """Accept nobody until a stranger has gone or a while has passed: no busy loop meanwhile."""
        self._look_again_s = time.monotonic() + _LOOK_AGAIN_S
        self._listen(False)

    def _listen(self, listening: bool) -> None:
        if listening != self._listening:
            self._listening = listening
            if listening:
                self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            else:
                self._selector.unregister(self._listener)

    def _make_place(self) -> bool:
        """Drop the stranger that has been here longest, if it had time enough."""
        oldest = self._oldest_with_time_enough()
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _oldest_with_time_enough(self) -> _Stranger | None:
        oldest = next(iter(self._strangers.values()), None)
        if oldest is None or time.monotonic() - oldest.came_s < _GIVE_UP_PLACE_S:
            return None
        return oldest

    def _talk(self, stranger: _Stranger) -> None:
        talk = stranger.talk
        try:
            data = stranger.socket.recv(talk.needed)
            answer = talk.feed(data) if data else b""
            # A new connection has room for these few bytes; one that has not is no peer of ours.
            whole = not answer or stranger.socket.send(answer) == len(answer)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self._drop(stranger)
            return
        if not data or not whole or (not talk.needed and talk.status != Status.WELCOME):
            self._drop(stranger)
        elif not talk.needed and talk.peer is not None:
            self._forget(stranger)
            self._welcome(stranger.socket, talk.peer)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.socket.fileno()]
        self._selector.unregister(stranger.socket)
        self._listen(True)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.socket.close()
        self.dropped += 1

    def expire(self) -> None:
        """Drop the strangers whose time is up."""
        limit_s = time.monotonic() - STRANGER_S
        for stranger in list(self._strangers.values()):
            if stranger.came_s > limit_s:
                break  # They came in this order.
            self._drop(stranger)
        if self._listening or time.monotonic() < self._look_again_s:
            return
        if len(self._strangers) < self._places or self._oldest_with_time_enough():
            self._listen(True)

    def close(self) -> None:
        """Stop listening and drop every stranger."""
        self._listen(False)
        self._listener.close()
        for stranger in list(self._strangers.values()):
            self._selector.unregister(stranger.socket)
            stranger.socket.close()
        self._strangers.clear()


class Knock:
    """One connection being made: connected, proved, and handed to `welcome` when it is let in.

    A refused or cut connection is tried again, with a growing pause, for as long as `retry` is
    called between two selects. The other end's verdict is not: it raises out of the selector's
    dispatch, as an AuthenticationError or a ConnectError.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: Address,
        own: Facts,
        key: bytes,
        welcome: Callable[[socket.socket, Facts], None],
    ) -> None:
        self._selector = selector
        self._family, self._address = resolve(address)
        self._own = own
        self._key = key
        self._welcome = welcome
        self._where = f"rank {own.peer} at {show_address(address)}"
        self._socket: socket.socket | None = None
        self._talk: Proving | None = None
        self._pause_s = _FIRST_RETRY_S
        self._next_try_s = 0.0
        self.let_in = False
        self.problem = "nothing was tried"

    def retry(self) -> float:
        """Try again if it is time to; returns the seconds until it is."""
        if self.let_in or self._socket is not None:
            return STRANGER_S
        wait_s = self._next_try_s - time.monotonic()
        if wait_s > 0:
            return wait_s
        self._connect()
        return self._pause_s

    def _connect(self) -> None:
        try:
            sock = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError as error:
            self._pause(error)  # No descriptor is free now; strangers who hold some will be gone.
            return
        self._socket = sock
        sock.setblocking(False)
        self._talk = Proving(self._own, self._key, self._where)
        self.problem = "no answer"
        outcome = sock.connect_ex(self._address)
        if outcome not in (0, errno.EINPROGRESS):
            self._pause(OSError(outcome, os.strerror(outcome)))
            return
        self._selector.register(sock, selectors.EVENT_WRITE, self._connected)

    def _connected(self) -> None:
        assert self._socket is not None
        assert self._talk is not None
        sock = self._socket
        try:
            outcome = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if outcome:
                raise OSError(outcome, os.strerror(outcome))
            # Where nobody listens on a port of the ephemeral range, TCP can connect to itself.
            if sock.getsockname() == sock.getpeername():
                raise OSError(errno.ECONNREFUSED, "nobody listens there")
            if sock.send(self._talk.hello) != len(self._talk.hello):
                raise OSError(errno.ENOBUFS, "no room for a hello")
        except OSError as error:
            self._pause(error)
            return
        self._selector.modify(sock, selectors.EVENT_READ, self._answered)

    def _answered(self) -> None:
        assert self._socket is not None
        assert self._talk is not None
        sock, talk = self._socket, self._talk
        try:
            data = sock.recv(talk.needed)
            if not data:
                raise OSError(errno.ECONNRESET, "it closed the connection during the handshake")
            answer = talk.feed(data)
            if answer and sock.send(answer) != len(answer):
                raise OSError(errno.ENOBUFS, "no room for a proof")
        except BlockingIOError:
            return
        except OSError as error:
            self._pause(error)
            return
        if not talk.needed:
            self._selector.unregister(sock)
            self._socket = None
            self.let_in = True
            self._welcome(sock, talk.peer)

    def _pause(self, error: OSError) -> None:
        self.problem = error.strerror or str(error)
        self.close()
        self._next_try_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_RETRY_S)

    def close(self) -> None:
        """Give up what is under way."""
        if self._socket is not None:
            if self._socket in self._selector.get_map():
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def __str__(self) -> str:
        return f"{self._where}: {self.problem}"


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket on exactly this address; a port in use is named."""
    family, address = resolve((host, port))
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        hint = "; use port 0 or another port" if error.errno == errno.EADDRINUSE else ""
        raise ConnectError(
            f"cannot listen at {show_address((host, port))}: {error.strerror}{hint}"
        ) from error
    return sock
