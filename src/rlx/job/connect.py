"""From a role to a group: run a body on the rank, or the ranks, that this process has."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rlx import net
from rlx.errors import ConnectError
from rlx.group import ProcessGroup
from rlx.job.launcher import LISTENER_VARIABLE
from rlx.job.place import Role, coordinator_of, read_token
from rlx.job.threads import run_threads
from rlx.net import Deadline, NetTransport, Place

T = TypeVar("T")


def run_here(
    role: Role,
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    body: Callable[[ProcessGroup], T],
) -> T:
    """Run `body(group)` on this process's rank, or on all ranks if they are its threads.

    `settings` is the [net] section. Returns this rank's result, or rank 0's of the threads. A rank
    whose body raises tells the others before the error goes on.
    """
    deadline_s = float(settings["deadline_s"])
    if role.transport == "mpi":
        transport: NetTransport = _connected_by_mpi(role.ranks, bool(settings["shared_memory"]))
    elif role.place is None or role.ranks == 1:
        mesh = net.MemoryTransport.mesh(role.ranks)
        return run_threads([ProcessGroup(one, deadline=deadline_s) for one in mesh], body)[0]
    else:
        transport = _connected_by_tcp(settings, role.place, environ)
    with ProcessGroup(transport, deadline=deadline_s) as group:
        return body(group)


def _connected_by_tcp(
    settings: Mapping[str, Any], place: Place, environ: Mapping[str, str]
) -> NetTransport:
    return net.join_mesh(
        place.rank,
        place.world_size,
        coordinator_of(place, settings["coordinator"]),
        token=read_token(place),
        job=environ.get("RLX_JOB_ID", ""),
        coordinator_listener=_inherited_listener(place, environ),
        deadline=Deadline(float(settings["deadline_s"])),
        heartbeat_s=float(settings["heartbeat_s"]),
        shared_memory=bool(settings["shared_memory"]),
    )


def _connected_by_mpi(ranks: int, shared_memory: bool) -> NetTransport:
    transport = net.MpiTransport.from_comm(shared_memory=shared_memory)
    try:
        net.refuse_split_world(ranks, transport.world_size)
    except ConnectError:
        transport.close()
        raise
    return transport


def _inherited_listener(place: Place, environ: Mapping[str, str]) -> socket.socket | None:
    number = environ.get(LISTENER_VARIABLE)
    if place.rank != 0 or number is None:
        return None
    listener = socket.socket(fileno=int(number))
    os.set_inheritable(listener.fileno(), False)
    return listener
