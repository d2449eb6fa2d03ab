"""Closing a connection so that what was last sent still arrives."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

_STEP_S: Final = 0.001
_TCP_CLOSE: Final = 7  # TCP_CLOSE in Linux's include/net/tcp_states.h
_DRAIN_BYTES: Final = 256 * 1024
_DRAINS_A_STEP: Final = 64

LastWord: TypeAlias = Callable[[], bool]
"""Says the last word on a connection and shuts that direction; False: no room, ask again."""


def nothing_to_say() -> bool:
    """The last word of a connection that has none."""
    return True


def close_softly(connections: Iterable[tuple[socket.socket, LastWord]], limit_s: float) -> None:
    """Say each connection's last word, wait until the peers' kernels have it all, and close.

    A socket closed with unread bytes in it resets its connection, and what was sent but not yet
    taken over by the peer's kernel is lost. So what still comes in is read off meanwhile. A peer
    that takes nothing holds this up for `limit_s` at most.
    """
    closing = [_Closing(sock, word) for sock, word in connections]
    end = time.monotonic() + limit_s
    waiting = [one for one in closing if not one.finished()]
    while waiting and time.monotonic() < end:
        time.sleep(_STEP_S)
        waiting = [one for one in waiting if not one.finished()]
    for one in closing:
        one.sock.close()


class _Closing:
    def __init__(self, sock: socket.socket, word: LastWord) -> None:
        self.sock = sock
        self._word = word
        self._said = False

    def finished(self) -> bool:
        """Move on as far as can be; True where nothing is left to wait for."""
        self._said = self._said or self._word()
        if not self._drain() or _is_dead(self.sock):
            return True
        return self._said and unacknowledged_bytes(self.sock) == 0

    def _drain(self) -> bool:
        """Read off what has come; False where the connection is broken."""
        try:
            for _ in range(_DRAINS_A_STEP):
                if not self.sock.recv(_DRAIN_BYTES):
                    return True
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return True


def _is_dead(sock: socket.socket) -> bool:
    """Whether the connection is over in both directions, or was reset (Linux: TCP_INFO)."""
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == _TCP_CLOSE


def unacknowledged_bytes(sock: socket.socket) -> int:
    """How much of what was sent the peer's kernel has not taken over yet (Linux: SIOCOUTQ)."""
    answer = fcntl.ioctl(sock, termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])
