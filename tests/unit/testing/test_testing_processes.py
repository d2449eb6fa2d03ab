"""The laws hold between processes too, where a rank can really be killed."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlx.testing.laws import LAWS

WATCHDOG_S = 60.0
DEATH = "death"
SILENCE = "silence"

# Each process runs the laws one after the other, each over a mesh of its own.
PROGRAM = """
import json, os, signal, socket, sys, time
from rlx.net import Deadline, TcpTransport
from rlx.testing.laws import LAWS, dying

rank, meshes = int(sys.argv[1]), json.loads(sys.argv[2])

def kill_oneself(transport):
    os.kill(os.getpid(), signal.SIGKILL)

def run(transport, text):
    try:
        if text in LAWS:
            LAWS[text].body(transport)
        elif text == "death":
            dying(transport, kill_oneself)
        else:
            dying(transport, lambda one: time.sleep(3), deadline_s=1)
    except BaseException as error:
        transport.abort(error)
        raise
    finally:
        transport.close()

for text, descriptors, addresses in meshes:
    transport = TcpTransport.from_listener(
        rank, len(addresses), socket.socket(fileno=descriptors[rank]),
        [tuple(address) for address in addresses], deadline=Deadline(20),
    )
    run(transport, text)
    print(text, flush=True)
"""


@contextlib.contextmanager
def doors(count: int) -> Iterator[list[socket.socket]]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        yield opened
    finally:
        for door in opened:
            door.close()


def run_processes(world_size: int, texts: list[str]) -> list[tuple[int, list[str], str]]:
    """Each rank's exit status, what it printed, and its errors."""
    with doors(world_size * len(texts)) as listeners:
        meshes = []
        for place, text in enumerate(texts):
            own = listeners[place * world_size : (place + 1) * world_size]
            meshes.append((text, [one.fileno() for one in own], [one.getsockname() for one in own]))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(rank), json.dumps(meshes)],
                pass_fds=[one.fileno() for one in listeners],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]
    return [outcome(process) for process in ranks]


def outcome(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    try:
        out, err = process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return process.returncode, out.splitlines(), err


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_law_holds_between_processes_and_a_killed_rank_is_named(world_size):
    texts = [text for text, law in LAWS.items() if law.least_ranks <= world_size]
    *living, dead = run_processes(world_size, [*texts, DEATH])
    for status, said, errors in living:
        assert (status, said) == (0, [*texts, DEATH]), errors
    assert dead[:2] == (-9, texts), dead[2]


def test_a_rank_that_is_silent_where_it_should_die_fails_the_law():
    """The counter-test of the death."""
    (status, said, errors), _ = run_processes(2, [SILENCE])
    assert (status, said) == (1, [])
    assert "AssertionError: expected PeerLost; got DeadlineExceeded" in errors
