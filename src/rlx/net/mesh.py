"""The full mesh: two connections, data and control, between every pair of ranks.

Rank i connects to every j < i and accepts from every j > i. What the connections carry is not
known here.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlx.errors import DeadlineExceeded, UsageError
from rlx.net.addresses import Address, is_loopback, show_address
from rlx.net.auth import Channel, Facts, Status
from rlx.net.deadline import Deadline
from rlx.net.doors import Door, Knock, dispatch

_LOOK_S = 0.25


@dataclass(slots=True)
class Mesh:
    """The connections of one rank, by peer: non-blocking, without Nagle's delay.

    `sharing` holds the peers that would share memory with this rank, where it would with them.
    """

    data: dict[int, socket.socket] = field(default_factory=dict)
    control: dict[int, socket.socket] = field(default_factory=dict)
    sharing: set[int] = field(default_factory=set)

    def of(self, channel: int) -> dict[int, socket.socket]:
        """The connections of one channel."""
        return self.data if channel == Channel.DATA else self.control

    def close(self) -> None:
        """Close every connection, without a word."""
        for sock in (*self.data.values(), *self.control.values()):
            sock.close()


def require_loopback(addresses: Sequence[Address]) -> None:
    """Without a token, only addresses that no other machine can reach."""
    for address in addresses:
        if not is_loopback(address[0]):
            raise UsageError(
                f"{show_address(address)} is not a loopback address; without a token a transport "
                "binds and connects on loopback only. Give every rank the same token "
                "(say, secrets.token_bytes(32))"
            )


def make_mesh(
    own: Facts,
    key: bytes,
    listener: socket.socket,
    addresses: Mapping[int, Address],
    deadline: Deadline,
) -> Mesh:
    """Connect to the lower ranks and accept the higher ones. The listener is closed in any case.

    Raises
    ------
    DeadlineExceeded
        Some ranks never came; `peers` and the message name them.
    AuthenticationError, ConnectError
        A lower rank holds another token, or belongs to another job.
    """
    with selectors.DefaultSelector() as selector:
        gathering = _Gathering(selector, own, key, listener, addresses)
        try:
            gathering.run(deadline)
        except BaseException:
            gathering.mesh.close()
            raise
        finally:
            gathering.close()
        return gathering.mesh


class _Gathering:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        own: Facts,
        key: bytes,
        listener: socket.socket,
        addresses: Mapping[int, Address],
    ) -> None:
        self._selector = selector
        self._own = own
        self._key = key
        self.mesh = Mesh()
        self._knocks: list[Knock] = []
        self._door = Door(selector, listener, own, key, self._judge, self._welcome)
        self._addresses = addresses

    def run(self, deadline: Deadline) -> None:
        for peer in range(self._own.rank):
            for channel in (Channel.DATA, Channel.CONTROL):
                self._knocks.append(self._knock(peer, channel))
        while missing := self._missing():
            waits_s = [deadline.remaining(), _LOOK_S, *(knock.retry() for knock in self._knocks)]
            dispatch(self._selector, max(0.0, min(waits_s)))
            self._door.expire()
            if deadline.expired():
                missing = self._missing()
                if missing:
                    raise self._late(missing, deadline)

    def close(self) -> None:
        for knock in self._knocks:
            knock.close()
        self._door.close()

    def _knock(self, peer: int, channel: Channel) -> Knock:
        facts = replace(self._own, peer=peer, channel=channel)
        return Knock(
            self._selector,
            self._addresses[peer],
            facts,
            self._key,
            lambda sock, there: self._keep(sock, peer, channel, there.shares),
        )

    def _judge(self, peer: Facts) -> Status:
        higher = self._own.rank < peer.rank < self._own.world_size
        if not higher or peer.channel not in (Channel.DATA, Channel.CONTROL):
            return Status.NOT_EXPECTED
        known = self.mesh.of(peer.channel).get(peer.rank)
        return Status.TAKEN if known is not None and _is_open(known) else Status.WELCOME

    def _welcome(self, sock: socket.socket, peer: Facts) -> None:
        self._keep(sock, peer.rank, peer.channel, peer.shares)

    def _keep(self, sock: socket.socket, peer: int, channel: int, shares: bool) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections = self.mesh.of(channel)
        if peer in connections:
            connections[peer].close()
        connections[peer] = sock
        if shares and self._own.shares:
            self.mesh.sharing.add(peer)

    def _missing(self) -> list[int]:
        return [
            peer
            for peer in range(self._own.world_size)
            if peer != self._own.rank and not (peer in self.mesh.data and peer in self.mesh.control)
        ]

    def _late(self, missing: Sequence[int], deadline: Deadline) -> DeadlineExceeded:
        problems = {str(knock) for knock in self._knocks if not knock.let_in}
        names = ", ".join(f"rank {peer}" for peer in missing)
        details = "".join(f"; {problem}" for problem in sorted(problems))
        if self._door.dropped:
            details += f"; {self._door.dropped} connections without a valid proof were dropped"
        return DeadlineExceeded(
            f"rank {self._own.rank} waited {deadline.elapsed():.3g} s for a mesh of "
            f"{self._own.world_size}; never came: {names}{details}",
            missing,
        )


def _is_open(sock: socket.socket) -> bool:
    """Whether the other end still holds its connection, as far as is known here."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
