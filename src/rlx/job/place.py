"""Where this process stands in its job: alone, to launch others, or one rank among several."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlx.errors import ConfigError
from rlx.net import Place, find_place, parse_address

_MPI_LAUNCHERS = frozenset({"openmpi", "pmi", "pmix"})
TOKEN_LIMIT_BYTES = 4096


@dataclass(frozen=True)
class Role:
    """What this process does.

    `ranks` is the world size; `place` says which rank this is, where a launcher started it, and is
    None where this process has to start the ranks itself (as threads or as processes).
    """

    transport: str
    ranks: int
    place: Place | None

    @property
    def carrier(self) -> str:
        """What moves the bytes: the transport, or "memory" where one rank has no one to talk to."""
        return "memory" if self.ranks == 1 and self.transport != "mpi" else self.transport


def role_of(environ: Mapping[str, str], transport: str, wanted_ranks: int | None) -> Role:
    """Decide from the launcher's environment, the transport's name and `-n`.

    Raises `ConfigError` where they contradict each other.
    """
    place = find_place(environ)
    if wanted_ranks is not None and wanted_ranks < 1:
        raise ConfigError(f"-n is at least 1; got {wanted_ranks}")
    if place is not None:
        return _started(place, transport, wanted_ranks)
    ranks = wanted_ranks or 1
    if transport == "mpi" and ranks > 1:
        raise ConfigError(
            f"the mpi transport is started by an MPI launcher: mpirun -n {ranks} rlx train ..."
        )
    return Role("tcp" if transport == "auto" else transport, ranks, None)


def _started(place: Place, transport: str, wanted_ranks: int | None) -> Role:
    if wanted_ranks not in (None, place.world_size):
        raise ConfigError(
            f"-n {wanted_ranks}, but {place.launcher} started {place.world_size} ranks; "
            f"leave -n out under a launcher"
        )
    if transport == "threads" and place.world_size > 1:
        raise ConfigError(
            f"the threads transport runs all ranks in one process, but {place.launcher} started "
            f"{place.world_size}; leave the launcher out and say -n {place.world_size}"
        )
    if transport == "auto":
        transport = "mpi" if place.launcher in _MPI_LAUNCHERS else "tcp"
    return Role(transport, place.world_size, place)


def coordinator_of(place: Place, configured: str) -> tuple[str, int]:
    """Where rank 0 listens: what the launcher says, else `net.coordinator`, with a fixed port."""
    if place.coordinator is not None:
        return place.coordinator
    host, port = parse_address(configured, name="net.coordinator")
    if port == 0 and place.world_size > 1:
        raise ConfigError(
            f"{place.launcher} does not say where rank 0 listens, and net.coordinator is "
            f"{configured}: give it a fixed port that all ranks can reach, such as "
            f"--set net.coordinator=host:29400"
        )
    return host, port


def read_token(place: Place) -> bytes | None:
    """The job's token, from the file that the environment names; None if it names none.

    A file that others can read is refused: whoever reads it can join the job.
    """
    if place.token_file is None:
        return None
    path = Path(place.token_file)
    try:
        with path.open("rb") as file:
            readable_by_others = os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
            token = file.read(TOKEN_LIMIT_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"RLX_TOKEN_FILE: cannot read {path}: {error.strerror}") from error
    if readable_by_others:
        raise ConfigError(f"RLX_TOKEN_FILE: others can read {path}; say chmod 600 {path}")
    if not 16 <= len(token) <= TOKEN_LIMIT_BYTES:
        raise ConfigError(f"RLX_TOKEN_FILE: a token has 16 to {TOKEN_LIMIT_BYTES} bytes ({path})")
    return token
