"""The store's server: the table on rank 0, served by one thread to proven clients.

Knows the handshake, the requests and their limits; what the keys mean is not its business.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import Counter, deque
from typing import Final

from rlx.errors import DeadlineExceeded, LimitExceeded, Malformed, TransportError, WireError
from rlx.net.addresses import Address
from rlx.net.auth import Channel, Facts, Status
from rlx.net.deadline import Deadline
from rlx.net.doors import Door, dispatch
from rlx.net.frames import drop_sent, pieces_for_one_call
from rlx.net.linger import close_softly
from rlx.net.store import (
    ABSENT,
    ANOTHER,
    ANSWER,
    FULL,
    GET,
    HERE,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_TABLE_BYTES,
    MAX_VALUE_BYTES,
    PEEK,
    REQUEST,
    SET,
    Store,
    check_entry,
    raise_for,
)

# What one proven client, and one rank however often it connects, may ask for at once. A rank of
# ours connects once and asks for one key at a time; one that gave up asking leaves a wait behind.
_MAX_WAITS: Final = 1024
_MAX_CLIENTS_A_RANK: Final = 8
_WRITE_BYTES: Final = 1 << 18
_WRITES_A_TURN: Final = 16
_LOOK_S: Final = 0.5
_LAST_ANSWERS_S: Final = 1.0
_JOIN_S: Final = 4.0


class Table:
    """The values, and what they may take."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._bytes = 0

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def set(self, key: bytes, value: bytes) -> int:
        known = self._values.get(key)
        if known is not None:
            return HERE if known == value else ANOTHER
        size = len(key) + len(value)
        if len(self._values) >= MAX_KEYS or self._bytes + size > MAX_TABLE_BYTES:
            return FULL
        self._values[key] = value
        self._bytes += size
        return HERE


class Requests:
    """What came from one client: the bytes, and the requests in them."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes. They are bounded by taking all requests out before more is fed."""
        self._received += data

    def take(self) -> tuple[int, int, bytes, bytes] | None:
        """What, number, key and value of the next request; one over a limit is a WireError."""
        received = self._received
        if len(received) < REQUEST.size:
            return None
        what, key_bytes, value_bytes, number = REQUEST.unpack_from(received)
        if what not in (SET, GET, PEEK) or (value_bytes and what != SET):
            raise Malformed(f"unknown request {what}")
        if not 0 < key_bytes <= MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES:
            raise LimitExceeded(f"a key of {key_bytes} or a value of {value_bytes} bytes")
        key_end = REQUEST.size + key_bytes
        if len(received) < key_end + value_bytes:
            return None
        key = bytes(received[REQUEST.size : key_end])
        value = bytes(received[key_end : key_end + value_bytes])
        del received[: key_end + value_bytes]
        return what, number, key, value


class _Client:
    """One proven client: what came of its next request, and the answers that wait to go out."""

    def __init__(self, sock: socket.socket, rank: int) -> None:
        self.socket = sock
        self.rank = rank
        self.requests = Requests()
        self.waits = 0
        self.awaited: set[bytes] = set()
        # Views of the table's own values: a client that asks for a large one many times over, and
        # does not read, costs a few bytes an answer and not the value.
        self._unsent: deque[memoryview] = deque()

    def answer(self, outcome: int, number: int, value: bytes = b"") -> None:
        self._unsent.append(memoryview(ANSWER.pack(outcome, len(value), number)))
        if value:
            self._unsent.append(memoryview(value))

    def write(self) -> bool:
        """Send of what waits to go out as much as one turn allows; True when all of it is out.

        A broken connection raises.
        """
        try:
            for _ in range(_WRITES_A_TURN):
                if not self._unsent:
                    return True
                pieces = pieces_for_one_call(self._unsent, _WRITE_BYTES)
                drop_sent(self._unsent, self.socket.sendmsg(pieces))
        except (BlockingIOError, InterruptedError):
            return False
        return not self._unsent

    def finish_writing(self) -> bool:
        """Send what is left and shut this direction; False where there is no room for it yet."""
        try:
            if not self.write():
                return False
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return True  # The client is gone.
        return True


class StoreServer(Store):
    """The table itself, served on a listener (owned from now on) by a daemon thread.

    Clients prove themselves as in every handshake; strangers are bounded in number, bytes and
    time, and disturb nobody. A proven client that breaks the protocol is dropped.
    """

    def __init__(
        self, listener: socket.socket, *, world_size: int, job: str = "", key: bytes = b""
    ) -> None:
        self.address: Address = listener.getsockname()
        self._table = Table()
        self._changed = threading.Condition()
        self._waiting: dict[bytes, list[tuple[_Client, int]]] = {}
        self._fresh: list[bytes] = []
        self._clients: set[_Client] = set()
        self._clients_of: Counter[int] = Counter()
        self._closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._woken)
        own = Facts(0, world_size, job)
        self._door = Door(self._selector, listener, own, key, self._judge, self._welcome)
        self._thread = threading.Thread(target=self._serve, name="rlx-store", daemon=True)
        self._thread.start()

    def set(self, key: str, value: bytes, *, deadline: Deadline | None = None) -> None:
        """As `Store.set`; never waits."""
        name = check_entry(key, value)
        with self._changed:
            self._refuse_if_closed()
            outcome = self._put(name, bytes(value))
            self._wake()
        raise_for(outcome, key)

    def get(self, key: str, *, deadline: Deadline) -> bytes:
        """As `Store.get`."""
        name = check_entry(key)
        with self._changed:
            while (value := self._table.get(name)) is None:
                self._refuse_if_closed()
                if not self._changed.wait(deadline.remaining()) and deadline.expired():
                    raise DeadlineExceeded(f"nobody set {key!r} within {deadline.elapsed():.3g} s")
            return value

    def peek(self, key: str, *, deadline: Deadline) -> bytes | None:
        """As `Store.peek`; never waits."""
        with self._changed:
            return self._table.get(check_entry(key))

    def close(self) -> None:
        """Stop serving: answers under way still go out, for about a second at most."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._wake()
        self._thread.join(_LAST_ANSWERS_S + _JOIN_S)
        self._wake_writer.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise TransportError("the store is closed")

    def _put(self, key: bytes, value: bytes) -> int:
        outcome = self._table.set(key, value)
        if outcome == HERE:
            self._fresh.append(key)
            self._changed.notify_all()
        return outcome

    def _wake(self) -> None:
        try:
            self._wake_writer.send(b"\0")
        except BlockingIOError:
            return  # It is full of wakes already.

    # The serving thread

    def _serve(self) -> None:
        try:
            while not self._closed:
                dispatch(self._selector, _LOOK_S)
                self._door.expire()
                self._answer_waiting()
            self._answer_waiting()
            self._door.close()
            close_softly(
                [(client.socket, client.finish_writing) for client in self._clients],
                _LAST_ANSWERS_S,
            )
        finally:
            self._door.close()
            for client in self._clients:
                client.socket.close()
            self._wake_reader.close()
            self._selector.close()

    def _woken(self) -> None:
        self._wake_reader.recv(4096)

    def _judge(self, peer: Facts) -> Status:
        if not 0 < peer.rank < peer.world_size or peer.channel != Channel.STORE:
            return Status.NOT_EXPECTED
        full = self._clients_of[peer.rank] >= _MAX_CLIENTS_A_RANK
        return Status.TAKEN if full else Status.WELCOME

    def _welcome(self, sock: socket.socket, peer: Facts) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(sock, peer.rank)
        self._clients.add(client)
        self._clients_of[peer.rank] += 1
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._ready(client))

    def _ready(self, client: _Client) -> None:
        try:
            # Nothing more is asked of a client that does not take its answers.
            if client.write():
                self._read(client)
            self._write(client)
        except (OSError, WireError):
            self._drop(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.socket.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            raise ConnectionResetError("the client left")
        client.requests.feed(data)
        with self._changed:
            while (request := client.requests.take()) is not None:
                self._handle(client, *request)

    def _handle(self, client: _Client, what: int, number: int, key: bytes, value: bytes) -> None:
        if what == SET:
            client.answer(self._put(key, value), number)
            return
        known = self._table.get(key)
        if known is not None:
            client.answer(HERE, number, known)
        elif what == PEEK:
            client.answer(ABSENT, number)
        elif client.waits >= _MAX_WAITS:
            raise LimitExceeded("a client waits for too many keys at once")
        else:
            client.waits += 1
            client.awaited.add(key)
            self._waiting.setdefault(key, []).append((client, number))

    def _write(self, client: _Client) -> None:
        wanted = selectors.EVENT_READ if client.write() else selectors.EVENT_WRITE
        key = self._selector.get_key(client.socket)
        if key.events != wanted:
            self._selector.modify(client.socket, wanted, key.data)

    def _answer_waiting(self) -> None:
        touched = []
        with self._changed:
            for key in self._fresh:
                value = self._table.get(key)
                assert value is not None
                for client, number in self._waiting.pop(key, ()):
                    client.waits -= 1
                    client.awaited.discard(key)
                    client.answer(HERE, number, value)
                    touched.append(client)
            self._fresh.clear()
        for client in dict.fromkeys(touched):
            try:
                self._write(client)
            except OSError:
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._clients_of[client.rank] -= 1
        self._selector.unregister(client.socket)
        client.socket.close()
        for key in client.awaited:
            left = [wait for wait in self._waiting.pop(key) if wait[0] is not client]
            if left:
                self._waiting[key] = left
