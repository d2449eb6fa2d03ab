"""Many ranks and many messages: the same laws hold, and memory does not grow.

RLX_TEST_SCALE=1 runs the sizes that take long: a million messages, 64 ranks over TCP.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.net import FIRST_USER_TAG, Deadline, Incoming, Outgoing
from rlx.testing import make_mesh, run_on_mesh, run_ranks

IS_FULL = os.environ.get("RLX_TEST_SCALE") == "1"
MESSAGES = 1_000_000 if IS_FULL else 20_000
GROWTH_LIMIT_BYTES = 8 << 20
RANKS = {"memory": 64, "tcp": 64 if IS_FULL else 12}


def every_collective(group) -> None:
    rank, size = group.rank, group.world_size
    row = np.arange(size, dtype=np.int64) + 1000 * rank
    everyone = np.stack([np.arange(size, dtype=np.int64) + 1000 * peer for peer in range(size)])
    total = everyone.sum(0)
    assert np.array_equal(group.all_reduce(row), total)
    assert np.array_equal(group.reduce_scatter(row), total[rank : rank + 1])
    got = group.reduce(row, "max", root=1)
    assert got is None if rank != 1 else np.array_equal(got, everyone[-1])
    assert np.array_equal(group.broadcast(row, root=size - 1), everyone[-1])
    assert np.array_equal(group.all_gather(row), everyone)
    got = group.gather(row)
    assert got is None if rank else np.array_equal(got, everyone)
    assert group.scatter(row if rank == 0 else None).tolist() == rank
    assert group.scatter_v(np.split(row, size) if rank == 0 else None).tolist() == [rank]
    assert np.array_equal(group.all_to_all(row), everyone[:, rank])
    parts = group.all_to_all_v([row[peer : peer + 1] for peer in range(size)])
    assert [int(part[0]) for part in parts] == everyone[:, rank].tolist()
    moved = group.permute(row, [(peer + 1) % size for peer in range(size)])
    assert np.array_equal(moved, everyone[rank - 1])
    assert group.all_gather_bytes(b"%d" % rank) == [b"%d" % peer for peer in range(size)]
    group.send((rank + 1) % size, b"hello from %d" % rank)
    assert group.receive((rank - 1) % size) == b"hello from %d" % ((rank - 1) % size)
    group.barrier()


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_many_threads_as_ranks_call_every_collective(transport):
    ranks = RANKS[transport]
    needed = 3 * ranks * ranks + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if transport == "tcp" and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(
                f"{ranks} ranks in one process need {needed} open files; {hard} are allowed"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    run_ranks(ranks, every_collective, transport=transport)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_many_small_messages_do_not_make_memory_grow(kind):
    """Windows of messages in flight, each of another content, between two ranks."""
    window = 100
    sizes = {}

    def body(transport):
        peer = 1 - transport.rank
        slots = [bytearray(8) for _ in range(window)]
        for begun in range(0, MESSAGES, window):
            sends = [
                Outgoing(peer, FIRST_USER_TAG, b"small", (number.to_bytes(8, "little"),))
                for number in range(begun, begun + window)
            ]
            receives = [Incoming(peer, FIRST_USER_TAG, b"small", slot) for slot in slots]
            transport.exchange(sends, receives, deadline=Deadline(30))
            got = [int.from_bytes(slot, "little") for slot in slots]
            assert got == list(range(begun, begun + window))
            if transport.rank == 0 and begun == MESSAGES // 10:
                sizes["early"] = resident_bytes()
        sizes["late"] = resident_bytes()

    run_on_mesh(make_mesh(kind, 2), body, watchdog_s=800)
    assert sizes["late"] - sizes["early"] < GROWTH_LIMIT_BYTES


def test_messages_that_are_kept_do_make_memory_grow():
    """The measure above sees what a leak of a few hundred bytes a message would be."""
    code = (
        "from test_testing_sizes import resident_bytes\n"
        "before = resident_bytes()\n"
        "kept = [bytearray(512) for _ in range(20_000)]\n"
        "print(resident_bytes() - before)\n"
    )
    # In a process of its own: in this one, earlier tests have left free memory behind.
    grown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(grown.stdout) > GROWTH_LIMIT_BYTES
