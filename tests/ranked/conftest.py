"""Ranked tests: the same bodies as threads and under mpirun.

A test takes the fixture `ranked` and gives it a body that every rank runs:

    def test_sums_agree(ranked):
        results = ranked.groups(lambda group: group.all_reduce(np.ones(3, np.float32)))
        assert all(...  for result in results.values())

In a normal pytest run the ranks are threads, over memory and over TCP, with and without shared
memory, in worlds of up to 5, and `results` holds every rank's. Under mpirun with
`python -m pytest --with-mpi tests/ranked` each process is one rank over MPI, and `results` holds
its own alone: what a test asserts, it asserts on each rank, and what it compares between ranks, it
compares in the body, by a collective.

A rank that fails tells the others, whose waits end with its reason, and makes its pytest, and so
mpirun, fail; the next test has a fresh world. Ranks that can no longer make one end the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

from rlx.errors import RlxError
from rlx.group import ProcessGroup
from rlx.net import Deadline, MpiTransport, NetTransport
from rlx.testing import make_mesh, run_on_mesh

T = TypeVar("T")

DEADLINE_S = 30.0
SIZES = {"memory": (1, 2, 3, 5), "tcp": (2, 3, 5), "sockets": (1, 2, 3)}
THREADED = [(kind, size) for kind, sizes in SIZES.items() for size in sizes]


@dataclass(frozen=True)
class Ranked:
    """One world for one test."""

    kind: str
    world_size: int

    def transports(
        self, body: Callable[[NetTransport], T], *, mpi_chunk_bytes: int = 1 << 30
    ) -> dict[int, T]:
        """Run `body(transport)` on the ranks that this process has; their results by rank.

        `mpi_chunk_bytes` bounds one message of MPI; the other forms have no such bound.
        """
        if self.kind != "mpi":
            results = run_on_mesh(make_mesh(self.kind, self.world_size), body)
            return dict(enumerate(results))
        transport = _mpi_transport(mpi_chunk_bytes)
        try:
            return {transport.rank: body(transport)}
        except BaseException as error:  # a rank's outermost edge
            transport.abort(error)
            raise
        finally:
            transport.close()

    def groups(self, body: Callable[[ProcessGroup], T]) -> dict[int, T]:
        """Like `transports`, with `body(group)`."""
        return self.transports(lambda one: body(ProcessGroup(one, deadline=DEADLINE_S)))


def _mpi_transport(chunk_bytes: int) -> MpiTransport:
    try:
        return MpiTransport.from_comm(chunk_bytes=chunk_bytes, deadline=Deadline(DEADLINE_S))
    except RlxError as error:
        # The ranks are in different tests: whatever they did next, they would not meet again.
        pytest.exit(f"the ranks cannot make a world together: {error}", returncode=1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ranked" not in metafunc.fixturenames:
        return
    worlds = THREADED
    if metafunc.config.getoption("--with-mpi", default=False):
        from mpi4py import MPI

        worlds = [("mpi", MPI.COMM_WORLD.Get_size())]
    ids = [f"{kind}-{size}" for kind, size in worlds]
    metafunc.parametrize("ranked", [Ranked(*world) for world in worlds], ids=ids)
