"""The store's client: the table on rank 0, reached over one proven connection."""

from __future__ import annotations

import selectors
import socket
import threading

from rlx.errors import (
    ConnectError,
    DeadlineExceeded,
    LimitExceeded,
    Malformed,
    TransportError,
)
from rlx.net.addresses import Address, show_address
from rlx.net.auth import Channel, Facts
from rlx.net.deadline import Deadline
from rlx.net.doors import Knock, dispatch
from rlx.net.store import (
    ABSENT,
    ANOTHER,
    ANSWER,
    DEFAULT_SET_S,
    FULL,
    GET,
    HERE,
    MAX_VALUE_BYTES,
    PEEK,
    REQUEST,
    SET,
    Store,
    check_entry,
    raise_for,
)


class Answers:
    """What came from the server: the bytes, and the answers in them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._received += data

    def take(self) -> tuple[int, int, bytes] | None:
        """Outcome, number and value of the next answer; one that no server gives is a WireError."""
        if len(self._received) < ANSWER.size:
            return None
        outcome, size, number = ANSWER.unpack_from(self._received)
        if outcome not in (HERE, ABSENT, ANOTHER, FULL) or (size and outcome != HERE):
            raise Malformed(f"{self._where} gave an unknown answer {outcome} of {size} bytes")
        if size > MAX_VALUE_BYTES:
            raise LimitExceeded(f"{self._where} announced a value of {size} bytes")
        if len(self._received) < ANSWER.size + size:
            return None
        value = bytes(self._received[ANSWER.size : ANSWER.size + size])
        del self._received[: ANSWER.size + size]
        return outcome, number, value


class StoreClient(Store):
    """The table on rank 0, reached over TCP.

    Raises
    ------
    AuthenticationError, ConnectError
        The server holds another token, or serves another job.
    DeadlineExceeded
        The server was not reached in time.
    """

    def __init__(
        self,
        address: Address,
        *,
        rank: int,
        world_size: int,
        job: str = "",
        key: bytes = b"",
        deadline: Deadline,
    ) -> None:
        self._where = f"the coordinator at {show_address(address)}"
        self._lock = threading.Lock()
        self._answers = Answers(self._where)
        self._number = 0
        self._closed = False
        own = Facts(rank, world_size, job, 0, Channel.STORE)
        self._socket = _connect(address, own, key, deadline)

    @property
    def local_host(self) -> str:
        """The address of this machine by which it reaches the server."""
        return str(self._socket.getsockname()[0])

    @property
    def server_host(self) -> str:
        """The server's address as it was reached."""
        return str(self._socket.getpeername()[0])

    def set(self, key: str, value: bytes, *, deadline: Deadline | None = None) -> None:
        """As `Store.set`."""
        outcome, _ = self._ask(SET, key, value, deadline or Deadline(DEFAULT_SET_S))
        raise_for(outcome, key)

    def get(self, key: str, *, deadline: Deadline) -> bytes:
        """As `Store.get`."""
        return self._ask(GET, key, b"", deadline)[1]

    def peek(self, key: str, *, deadline: Deadline) -> bytes | None:
        """As `Store.peek`."""
        outcome, value = self._ask(PEEK, key, b"", deadline)
        return value if outcome == HERE else None

    def close(self) -> None:
        """Leave."""
        self._closed = True
        self._socket.close()

    def _ask(self, what: int, key: str, value: bytes, deadline: Deadline) -> tuple[int, bytes]:
        name = check_entry(key, value)
        with self._lock:
            if self._closed:
                raise TransportError(f"the connection to {self._where} is closed")
            self._number = (self._number + 1) % (1 << 32)
            request = REQUEST.pack(what, len(name), len(value), self._number) + name + value
            try:
                self._socket.settimeout(max(0.001, deadline.remaining()))
                self._socket.sendall(request)
                return self._answer(deadline)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{self._where} had no answer for {key!r} within {deadline.elapsed():.3g} s",
                    (0,),
                ) from None
            except OSError as error:
                raise ConnectError(f"{self._where} is gone: {error.strerror}") from error

    def _answer(self, deadline: Deadline) -> tuple[int, bytes]:
        """The answer to the last request. Answers to those that were given up are passed over."""
        while True:
            while (answer := self._answers.take()) is None:
                self._socket.settimeout(max(0.001, deadline.remaining()))
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ConnectionResetError(0, "it closed the connection")
                self._answers.feed(data)
            outcome, number, value = answer
            if number == self._number:
                return outcome, value


def _connect(address: Address, own: Facts, key: bytes, deadline: Deadline) -> socket.socket:
    """A proven connection to the store's server, blocking."""
    arrived: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        knock = Knock(selector, address, own, key, lambda sock, _: arrived.append(sock))
        try:
            while not knock.let_in:
                dispatch(selector, min(knock.retry(), deadline.remaining()))
                if deadline.expired() and not knock.let_in:
                    raise DeadlineExceeded(
                        f"rank {own.rank} did not reach the coordinator within "
                        f"{deadline.elapsed():.3g} s; {knock}",
                        (0,),
                    )
        finally:
            knock.close()
    arrived[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return arrived[0]
