"""One rank's side of each thing that is measured: rlx itself, MPI's own calls, torch's gloo.

The other libraries load when a rank is made that uses them, and never in the process that a user
starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from rlx.bench.calls import Move, items, part_items
from rlx.group import ProcessGroup
from rlx.net import FIRST_USER_TAG, Deadline, Incoming, Outgoing, load_mpi

_MOVE_S = 300.0
_STAMP = b"rlx:bench"


class RlxSubject:
    """The calls of a group, on arrays that it has made where its collectives work best."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def collective(self, call: str, size_bytes: int) -> Move:
        group, ranks = self._group, self._group.world_size
        if call == "barrier":
            return group.barrier
        share = part_items(size_bytes, ranks)
        if call == "all_gather":
            part = self._zeros(share)
            return lambda: group.all_gather(part)
        if call == "reduce_scatter":
            whole = self._zeros(share * ranks)
            return lambda: group.reduce_scatter(whole)
        array = self._zeros(items(size_bytes))
        if call == "broadcast":
            return lambda: group.broadcast(array, out=array)
        return lambda: group.all_reduce(array, out=array)

    def sender(self, peer: int, size_bytes: int) -> Move:
        message = Outgoing(peer, FIRST_USER_TAG, _STAMP, (self._bytes(size_bytes),))
        return self._exchange([message], [])

    def receiver(self, peer: int, size_bytes: int) -> Move:
        slot = Incoming(peer, FIRST_USER_TAG, _STAMP, self._bytes(size_bytes))
        return self._exchange([], [slot])

    def close(self) -> None:
        self._group.close()

    def _exchange(self, sends: list[Outgoing], receives: list[Incoming]) -> Move:
        transport = self._group.transport
        return lambda: transport.exchange(sends, receives, deadline=Deadline(_MOVE_S))

    def _zeros(self, count: int) -> np.ndarray:
        array = self._group.empty(count, np.float32)
        array.fill(0)
        return array

    def _bytes(self, size_bytes: int) -> memoryview:
        return self._zeros(items(size_bytes)).view(np.uint8).data


class NativeMpiSubject:
    """MPI's own calls on numpy arrays, buffer to buffer, as a program without rlx makes them."""

    def __init__(self, comm: Any | None = None) -> None:
        self._mpi = load_mpi()
        self._comm = self._mpi.COMM_WORLD if comm is None else comm

    def collective(self, call: str, size_bytes: int) -> Move:
        comm, ranks, in_place = self._comm, self._comm.Get_size(), self._mpi.IN_PLACE
        if call == "barrier":
            return comm.Barrier  # type: ignore[no-any-return]
        share = part_items(size_bytes, ranks)
        part, whole = np.zeros(share, np.float32), np.zeros(share * ranks, np.float32)
        array = np.zeros(items(size_bytes), np.float32)
        moves: dict[str, Move] = {
            "all_gather": lambda: comm.Allgather(part, whole),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(whole, part),
            "broadcast": lambda: comm.Bcast(array),
            "all_reduce": lambda: comm.Allreduce(in_place, array),
        }
        return moves[call]

    def sender(self, peer: int, size_bytes: int) -> Move:
        array = np.zeros(items(size_bytes), np.float32)
        return lambda: self._comm.Send(array, peer)

    def receiver(self, peer: int, size_bytes: int) -> Move:
        array = np.zeros(items(size_bytes), np.float32)
        return lambda: self._comm.Recv(array, peer)

    def close(self) -> None:
        """MPI ends with the process."""


class GlooSubject:
    """torch.distributed over gloo, on tensors of the CPU."""

    def __init__(self, rank: int, ranks: int, meeting_file: str, deadline_s: float) -> None:
        self._torch = import_module("torch")
        self._dist = import_module("torch.distributed")
        self._ranks = ranks
        self._dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting_file}",
            rank=rank,
            world_size=ranks,
            timeout=import_module("datetime").timedelta(seconds=deadline_s),
        )

    def collective(self, call: str, size_bytes: int) -> Move:
        dist = self._dist
        if call == "barrier":
            return dist.barrier  # type: ignore[no-any-return]
        share = part_items(size_bytes, self._ranks)
        part, whole = self._zeros(share), self._zeros(share * self._ranks)
        array = self._zeros(items(size_bytes))
        moves: dict[str, Move] = {
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "broadcast": lambda: dist.broadcast(array, 0),
            "all_reduce": lambda: dist.all_reduce(array),
        }
        return moves[call]

    def sender(self, peer: int, size_bytes: int) -> Move:
        array = self._zeros(items(size_bytes))
        return lambda: self._dist.send(array, peer)

    def receiver(self, peer: int, size_bytes: int) -> Move:
        array = self._zeros(items(size_bytes))
        return lambda: self._dist.recv(array, peer)

    def close(self) -> None:
        self._dist.destroy_process_group()

    def _zeros(self, count: int) -> Any:
        return self._torch.zeros(count, dtype=self._torch.float32)


def version_of_mpi() -> str:
    """The MPI library's name and version, such as "Open MPI v5.0.11"."""
    text: str = load_mpi().Get_library_version()
    return text.strip("\0 \n").split(",")[0].strip()


def version_of_gloo() -> str:
    """torch's version, which gloo has too."""
    return f"gloo of torch {import_module('torch').__version__}"
