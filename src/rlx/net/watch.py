"""What a driver sleeps on: the connections that can move something, a bell, and a wake-up call."""

from __future__ import annotations

import selectors
import socket
from typing import Final

from rlx.net.links import Link

_DRAIN_BYTES: Final = 4096


class Watch:
    """A selector over the links of one engine, under whose lock all but the sleep itself is used.

    Each link is watched for what it can use (`Link.interest`), and no more.
    """

    def __init__(self) -> None:
        self._is_asleep = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    def follow(self, link: Link) -> None:
        """Watch what the link can use now."""
        interest = link.interest
        if interest == link.registered:
            return
        if link.registered == 0:
            self._selector.register(link.socket, interest, link)
        elif interest == 0:
            self._selector.unregister(link.socket)
        else:
            self._selector.modify(link.socket, interest, link)
        link.registered = interest
        self.wake()

    def fall_asleep(self) -> None:
        """From now on `wake` ends the sleep."""
        self._is_asleep = True

    def sleep(self, timeout_s: float) -> list[tuple[Link | None, int]]:
        """The links that can move something, each with the events; None is a wake-up call."""
        return [(key.data, mask) for key, mask in self._selector.select(timeout_s)]

    def woke_up(self) -> None:
        """Nobody need `wake` any more."""
        self._is_asleep = False

    def wake(self) -> None:
        """End the sleep, if there is one."""
        if self._is_asleep:
            try:
                self._wake_writer.send(b"\0")
            except BlockingIOError:
                return  # It is full of wakes already.

    def drain_wakes(self) -> None:
        """Take the calls that ended the sleep."""
        try:
            self._wake_reader.recv(_DRAIN_BYTES)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Let go of everything."""
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
