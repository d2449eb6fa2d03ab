"""JSON lines over a socket: how the ranks of a world hear what to measure."""

from __future__ import annotations

import json
import socket
from typing import Any, TypeAlias

from rlx.errors import LimitExceeded

LINE_LIMIT_BYTES = 1 << 20
Message: TypeAlias = dict[str, Any]


class Lines:
    """Whole messages over one socket, which this object owns."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._received = bytearray()

    def send(self, message: Message) -> None:
        """Send one message."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """The next message. Takes as long as the socket's timeout; `EOFError` at the end."""
        while (message := self.taken()) is None:
            self.feed()
        return message

    def feed(self) -> None:
        """Read what has come; blocks if nothing has. `EOFError` where the other end is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the other end has closed")
        self._received += data
        if len(self._received) > LINE_LIMIT_BYTES:
            raise LimitExceeded(f"a message is over {LINE_LIMIT_BYTES} bytes")

    def taken(self) -> Message | None:
        """A message that is whole already."""
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = bytearray(rest)
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """Hang up."""
        self.socket.close()
