"""The beginning of an MPI transport: communicators of its own, and the heap of one host's ranks.

Collective over a communicator. Nothing blocks in MPI, so that every wait has its deadline.
"""

from __future__ import annotations

import time
from typing import Any, Final

from rlx.errors import ConnectError, DeadlineExceeded
from rlx.net.deadline import Deadline
from rlx.net.segment import NO_OFFER, OFFER_BYTES, PAGE_BYTES, Offer, Segment
from rlx.net.shared_heap import SharedHeap
from rlx.net.sharing import create_segment, default_heap_bytes

_LONGEST_SLEEP_S: Final = 0.001


def check_started(mpi: Any) -> None:
    if mpi.Is_finalized():
        raise ConnectError("MPI has ended in this process (MPI_Finalize); it cannot start again")
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise ConnectError(
            "MPI was started for a single thread, and a transport serves several; leave "
            "mpi4py.rc.threads and mpi4py.rc.thread_level as they are by default"
        )


def duplicate(mpi: Any, comm: Any, deadline: Deadline) -> Any:
    """A duplicate of `comm` whose errors are exceptions; every rank of it must come for one."""
    try:
        copy, request = comm.Idup()
        while not request.Test():
            if deadline.expired():
                raise DeadlineExceeded(
                    f"rank {comm.Get_rank()} of {comm.Get_size()} waited {deadline.elapsed():.3g} "
                    f"s for every rank to make its mpi transport"
                )
            time.sleep(min(_LONGEST_SLEEP_S, deadline.elapsed() / 20))
        copy.Set_errhandler(mpi.ERRORS_RETURN)
    except mpi.Exception as error:
        raise ConnectError(f"the communicator cannot be duplicated: {error}") from error
    return copy


class MpiMemory:
    """The segments behind a heap: this rank's, and those of its near peers."""

    def __init__(self, own: Segment, near: dict[int, Segment]) -> None:
        self._segments = [own, *near.values()]
        self.heap = SharedHeap(own, near, PAGE_BYTES)

    def close(self) -> None:
        """Let go of all memory but that of arrays which still lie in it."""
        self.heap.close()
        for segment in self._segments:
            segment.close()


def share_heap(
    mpi: Any, comm: Any, *, shares: bool, heap_bytes: int, deadline: Deadline
) -> MpiMemory | None:
    """Map the segments of the ranks of this host that would share; None where nobody is near.

    All ranks of `comm` call it, whether they share or not.
    """
    rank = comm.Get_rank()
    own = create_segment(PAGE_BYTES + (heap_bytes or default_heap_bytes())) if shares else None
    near: dict[int, Segment] = {}
    try:
        offer = NO_OFFER if own is None else own.offer
        offers = _gathered(mpi, comm, offer.pack(), deadline)
        for peer in range(comm.Get_size()) if own is not None else ():
            segment = None
            if peer != rank:
                there = offers[peer * OFFER_BYTES : (peer + 1) * OFFER_BYTES]
                segment = Segment.attach(Offer.unpack(there))
            if segment is not None:
                near[peer] = segment
        size = comm.Get_size()
        could = bytes(peer in near for peer in range(size))
        everyone = _gathered(mpi, comm, could, deadline)
        for peer in list(near):
            if not everyone[peer * size + rank]:
                near.pop(peer).close()
    except BaseException:
        for segment in near.values():
            segment.close()
        if own is not None:
            own.close()
        raise
    if own is not None and near:
        own.withdraw()
        return MpiMemory(own, near)
    if own is not None:
        own.close()
    return None


def _gathered(mpi: Any, comm: Any, data: bytes, deadline: Deadline) -> bytes:
    """The bytes of all ranks, which have one length, in rank order."""
    gathered = bytearray(len(data) * comm.Get_size())
    try:
        request = comm.Iallgather([data, mpi.BYTE], [gathered, mpi.BYTE])
        while not request.Test():
            if deadline.expired():
                raise DeadlineExceeded(
                    f"rank {comm.Get_rank()} of {comm.Get_size()} waited {deadline.elapsed():.3g} "
                    f"s for every rank to say whether it shares memory"
                )
            time.sleep(min(_LONGEST_SLEEP_S, deadline.elapsed() / 20))
    except mpi.Exception as error:
        raise ConnectError(
            f"the ranks could not tell each other what they share: {error}"
        ) from error
    return bytes(gathered)
