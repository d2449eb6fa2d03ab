"""The control connections: heartbeats, notices of failure, goodbyes. One thread a transport.

They are apart from the data so that a long step is not mistaken for a death, and a frozen process
not for a long step. This thread watches the peers and reports; what a failure means for the waits
of this rank is not its business.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol

from rlx.errors import LimitExceeded, Malformed, UnknownVersion, WireError
from rlx.net.linger import close_softly
from rlx.net.notices import MAX_NOTICE_BYTES, Notice

_HEAD: Final = struct.Struct("<2sBBI")  # magic, version, kind, bytes that follow
_MAGIC: Final = b"rc"
_VERSION: Final = 1
_HEARTBEAT: Final = 1
_NOTICE: Final = 2
_GOODBYE: Final = 3
_BEATS_A_SILENCE: Final = 5
_READ_BYTES: Final = 64 * 1024
_READS_A_TURN: Final = 16
_LAST_WORD_S: Final = 1.0
# How much longer a peer may take for its first heartbeat. It sends none before it has all its own
# connections, but once this rank has all of its, every rank is there and connecting.
FIRST_WORD_S: Final = 30.0
_JOIN_S: Final = 4.0


class Reports(Protocol):
    """Who is told what the control connections show. Called from the control thread."""

    def fail(self, notice: Notice) -> None:
        """A rank failed or is lost."""

    def peer_left(self, peer: int) -> None:
        """A peer said goodbye."""


def pack(kind: int, content: bytes = b"") -> bytes:
    """One control message."""
    return _HEAD.pack(_MAGIC, _VERSION, kind, len(content)) + content


class Messages:
    """What came from one peer: the bytes, and the control messages in them."""

    def __init__(self, peer: int, world_size: int) -> None:
        self._peer = peer
        self._world_size = world_size
        self._received = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes. They are bounded by taking all messages out before more is fed."""
        self._received += data

    def take(self) -> tuple[int, Notice | None] | None:
        """Kind of the next whole message, and its notice; one that no rank sends is a WireError."""
        received = self._received
        if len(received) < _HEAD.size:
            return None
        magic, version, kind, size = _HEAD.unpack_from(received)
        if magic != _MAGIC or kind not in (_HEARTBEAT, _NOTICE, _GOODBYE):
            raise Malformed(f"rank {self._peer} sent an unknown control message")
        if version != _VERSION:
            raise UnknownVersion(f"rank {self._peer} sent a control message of version {version}")
        if size > (MAX_NOTICE_BYTES if kind == _NOTICE else 0):
            raise LimitExceeded(f"rank {self._peer} sent a control message of {size} bytes")
        if len(received) < _HEAD.size + size:
            return None
        content = bytes(received[_HEAD.size : _HEAD.size + size])
        del received[: _HEAD.size + size]
        return kind, self._notice(content) if kind == _NOTICE else None

    def _notice(self, content: bytes) -> Notice:
        try:
            return Notice.decode(content, self._world_size)
        except WireError as error:
            raise type(error)(f"rank {self._peer} sent {error}") from error


class _Peer:
    """One control connection. `heard_s` is None until the peer's first heartbeat has come."""

    def __init__(self, rank: int, world_size: int, sock: socket.socket) -> None:
        self.rank = rank
        self.socket = sock
        self.heard_s: float | None = None
        self.finished = False
        self.messages = Messages(rank, world_size)
        self.unsent = bytearray()

    def write(self) -> None:
        """Send what waits to go out, as far as there is room."""
        if self.unsent:
            try:
                del self.unsent[: self.socket.send(self.unsent)]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.unsent.clear()  # Its end is found, and judged, by reading.

    def finish_writing(self) -> bool:
        """Send what is left and shut this direction; False where there is no room for it yet."""
        self.write()
        if self.unsent:
            return False
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return True  # It is shut from the other side.
        return True


class Control:
    """Watches the peers of one rank from `start` to `finish`, in a daemon thread."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        connections: Mapping[int, socket.socket],
        heartbeat_s: float,
        reports: Reports,
    ) -> None:
        self._rank = rank
        self._heartbeat_s = heartbeat_s
        self._beat_s = heartbeat_s / _BEATS_A_SILENCE
        self._reports = reports
        self._peers = [_Peer(peer, world_size, sock) for peer, sock in connections.items()]
        self._last_word: bytes | None = None
        self._first_words_end_s = float("inf")
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        for peer in self._peers:
            self._selector.register(peer.socket, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._run, name=f"rlx-control-{rank}", daemon=True)

    def start(self) -> None:
        """Begin to send heartbeats and to listen for them."""
        self._thread.start()

    def say_goodbye(self) -> None:
        """Tell every peer that this rank leaves in order, and end. Takes about a second at most."""
        self._finish(pack(_GOODBYE))

    def tell(self, notice: Notice) -> None:
        """Tell every peer of a failure, and end. Takes about a second at most."""
        self._finish(pack(_NOTICE, notice.encode()))

    def _finish(self, last_word: bytes) -> None:
        self._last_word = last_word
        # The thread may be awake for another reason, see the last word, and be gone by now.
        with contextlib.suppress(BrokenPipeError):
            self._wake_writer.send(b"\0")
        self._thread.join(_LAST_WORD_S + _JOIN_S)
        self._wake_writer.close()

    def _run(self) -> None:
        try:
            self._watch()
            self._say_last_word()
        finally:
            self._selector.close()
            self._wake_reader.close()
            for peer in self._peers:
                peer.socket.close()

    def _watch(self) -> None:
        next_beat_s = time.monotonic()
        self._first_words_end_s = next_beat_s + FIRST_WORD_S + self._heartbeat_s
        while self._last_word is None:
            now = time.monotonic()
            if now >= next_beat_s:
                self._beat()
                next_beat_s = now + self._beat_s
            ready = self._selector.select(max(0.0, next_beat_s - time.monotonic()))
            late_s = time.monotonic() - next_beat_s
            for key, _ in ready:
                if key.data is not None:
                    self._read(key.data)
            self._judge_silence(late_s)

    def _beat(self) -> None:
        for peer in self._peers:
            if not peer.finished:
                if not peer.unsent:
                    peer.unsent += pack(_HEARTBEAT)
                peer.write()

    def _judge_silence(self, late_s: float) -> None:
        now = time.monotonic()
        if late_s > self._beat_s:
            # This process itself was stopped for a while: what the peers sent meanwhile may be
            # unread, so the silence is nobody's fault yet.
            self._first_words_end_s += late_s
            for peer in self._peers:
                peer.heard_s = None if peer.heard_s is None else now
            return
        for peer in self._peers:
            end_s = self._first_words_end_s
            if peer.heard_s is not None:
                end_s = peer.heard_s + self._heartbeat_s
            if not peer.finished and now > end_s:
                silent_s = self._heartbeat_s + (FIRST_WORD_S if peer.heard_s is None else 0)
                self._lose(
                    peer,
                    f"rank {peer.rank} sent no heartbeat for {silent_s:g} s: "
                    "it is frozen, or its host or network is gone",
                )

    def _read(self, peer: _Peer) -> None:
        ended = False
        try:
            for _ in range(_READS_A_TURN):
                data = peer.socket.recv(_READ_BYTES)
                ended = not data
                if ended:
                    break
                if not peer.finished:
                    peer.messages.feed(data)
                    self._handle(peer)
        except (BlockingIOError, InterruptedError):
            pass  # All that has come is read.
        except OSError:
            ended = True
        except WireError as error:
            self._lose(peer, f"{error}; its control connection is closed")
            self._hang_up(peer)
        if ended and not peer.finished:
            self._lose(peer, f"rank {peer.rank} died: its connection ended without a goodbye")
        elif ended:
            self._forget(peer)

    def _handle(self, peer: _Peer) -> None:
        while not peer.finished and (message := peer.messages.take()) is not None:
            kind, notice = message
            peer.heard_s = time.monotonic()
            if notice is not None:
                peer.finished = True
                self._reports.fail(self._judged(notice, peer.rank))
            elif kind == _GOODBYE:
                peer.finished = True
                self._reports.peer_left(peer.rank)

    def _judged(self, notice: Notice, teller: int) -> Notice:
        """A rank that is told of its own death knows better: the link to it has failed."""
        if notice.lost and notice.blamed == self._rank:
            text = f"rank {teller} takes rank {self._rank} for lost, which lives: {notice.message}"
            return Notice.of_loss(self._rank, text)
        return notice

    def _lose(self, peer: _Peer, message: str) -> None:
        peer.finished = True
        self._forget(peer)
        self._reports.fail(Notice.of_loss(peer.rank, message))

    def _hang_up(self, peer: _Peer) -> None:
        """Close the connection of a peer to which there is nothing more to say."""
        self._peers.remove(peer)
        peer.socket.close()

    def _forget(self, peer: _Peer) -> None:
        if peer.socket.fileno() in self._selector.get_map():
            self._selector.unregister(peer.socket)

    def _say_last_word(self) -> None:
        assert self._last_word is not None
        for peer in self._peers:
            peer.unsent += self._last_word
        close_softly([(peer.socket, peer.finish_writing) for peer in self._peers], _LAST_WORD_S)
