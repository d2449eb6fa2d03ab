"""Bytes between ranks: the transport, its forms, rendezvous, and what a launcher's environment
says.

This room knows sockets, MPI and threads; it knows no arrays, no graphs and no training. A form's
module loads when it is first asked for, and mpi4py only when an MPI transport is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx.net.deadline import Deadline
from rlx.net.heap import Heap
from rlx.net.tags import COLLECTIVE_TAG, FIRST_USER_TAG, POINT_TO_POINT_TAG
from rlx.net.transport import (
    MAX_TAG,
    Buffer,
    Incoming,
    MessageMismatch,
    Mismatch,
    NetTransport,
    Outgoing,
)

if TYPE_CHECKING:
    from rlx.net.launch import Place, find_place, parse_address
    from rlx.net.memory import MemoryTransport
    from rlx.net.mpi import MpiTransport, load_mpi, refuse_split_world
    from rlx.net.rendezvous import join_mesh
    from rlx.net.tcp import TcpTransport

_LAZY = {
    "MemoryTransport": "rlx.net.memory",
    "MpiTransport": "rlx.net.mpi",
    "Place": "rlx.net.launch",
    "TcpTransport": "rlx.net.tcp",
    "find_place": "rlx.net.launch",
    "join_mesh": "rlx.net.rendezvous",
    "load_mpi": "rlx.net.mpi",
    "parse_address": "rlx.net.launch",
    "refuse_split_world": "rlx.net.mpi",
}

__all__ = [
    "COLLECTIVE_TAG",
    "FIRST_USER_TAG",
    "MAX_TAG",
    "POINT_TO_POINT_TAG",
    "Buffer",
    "Deadline",
    "Heap",
    "Incoming",
    "MemoryTransport",
    "MessageMismatch",
    "Mismatch",
    "MpiTransport",
    "NetTransport",
    "Outgoing",
    "Place",
    "TcpTransport",
    "find_place",
    "join_mesh",
    "load_mpi",
    "parse_address",
    "refuse_split_world",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'rlx.net' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
