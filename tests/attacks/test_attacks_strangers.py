"""Strangers of every kind at the door of a job that is starting: it starts, and its bits stay."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from attack_kit import accepted, shake
from test_attacks_open_ports import free_port, quiet_digest, start_rank, stop, wait_for_listeners

from rlx.errors import AuthenticationError, ConnectError
from rlx.net.auth import HELLO_BYTES, VERDICT_BYTES, Channel, Facts, Proving
from rlx.net.doors import MAX_STRANGERS

TOKEN = b"a token that nobody guesses"
MORE = ("--set", "job.epochs=2")
GOOD = Facts(1, 2, "", 0, Channel.STORE)


class Door:
    """The coordinator's door, and what has been opened to it."""

    def __init__(self, port: int, pid: int) -> None:
        self.address = ("127.0.0.1", port)
        self.pid = pid
        self._open = contextlib.ExitStack()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self.address, timeout=10)
        self._open.callback(sock.close)
        return sock

    def close(self) -> None:
        self._open.close()


def answer(sock: socket.socket) -> bytes:
    """All that comes until the other end closes; a reset is an end like any other."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(4096):
            got += part
    return got


def hello(facts: Facts = GOOD) -> bytes:
    return Proving(facts, TOKEN, "the door").hello


def truncated_and_oversized(door: Door) -> None:
    for data in (hello()[:-1], hello() + bytes(100_000), hello()[:8] + b"\xff" * 100_000):
        sock = door.connect()
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        assert len(answer(sock)) <= HELLO_BYTES + VERDICT_BYTES


def a_replay(door: Door) -> None:
    """What a true rank has said, word for word: its proof is of another challenge."""
    proving = Proving(GOOD, TOKEN, "the door")
    true = door.connect()
    true.sendall(proving.hello)
    challenge = b""
    while len(challenge) < proving.needed:
        challenge += true.recv(proving.needed - len(challenge))
    proof = proving.feed(challenge)
    true.close()
    replay = door.connect()
    replay.sendall(proving.hello + proof)
    got = answer(replay)
    assert got[:HELLO_BYTES] != challenge, "a challenge came twice"
    assert len(got) > HELLO_BYTES, "a wrong proof is told so"
    again = Proving(GOOD, TOKEN, "the door")
    again.feed(challenge)
    with pytest.raises(AuthenticationError):
        again.feed(got[HELLO_BYTES : HELLO_BYTES + VERDICT_BYTES])


def a_reflection(door: Door) -> None:
    """The door's own challenge, sent back as a hello, and its answer as a proof."""
    first, second = door.connect(), door.connect()
    first.sendall(hello())
    challenge = first.recv(HELLO_BYTES)
    second.sendall(challenge + challenge[:32])
    assert len(answer(second)) < 2 * HELLO_BYTES


def other_facts(door: Door) -> None:
    for facts, key, error in (
        (GOOD, b"another token", AuthenticationError),
        (replace(GOOD, job="another"), TOKEN, ConnectError),
        (replace(GOOD, version=77), TOKEN, ConnectError),
        (replace(GOOD, world_size=3), TOKEN, ConnectError),
        (replace(GOOD, rank=0, peer=1), TOKEN, ConnectError),
    ):
        with pytest.raises(error) as refused:
            shake(door.address, facts, key).close()
        assert "a token that nobody guesses" not in str(refused.value)


def drips(door: Door) -> None:
    """A byte now and then, by a hundred at once, for as long as the job needs to start."""
    slow = [door.connect() for _ in range(100)]
    data = hello()

    def drip() -> None:
        for byte in data:
            for sock in slow:
                with contextlib.suppress(OSError):
                    sock.send(bytes((byte,)))
            time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()


def a_thousand_idle_connections(door: Door) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200 if hard == resource.RLIM_INFINITY else min(1200, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        count = min(1000, wanted - 150)
        for _ in range(count):
            door.connect()
        time.sleep(0.2)
        held = accepted(door.pid, door.address[1])
        assert held <= MAX_STRANGERS + 8, f"{held} of {count} connections are held"
    finally:
        # The sockets stay open: only what is opened later is bounded again.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ATTACKS = (
    truncated_and_oversized,
    a_replay,
    a_reflection,
    other_facts,
    drips,
    a_thousand_idle_connections,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_job_starts_and_ends_with_the_bits_of_a_quiet_run(tmp_path, attack: Callable):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_bytes(TOKEN)
    port = free_port()
    coordinator = start_rank(0, port, token, *MORE)
    door = Door(port, coordinator.pid)
    try:
        wait_for_listeners(coordinator.pid)
        attack(door)
        worker = start_rank(1, port, token, *MORE)
        output, errors = coordinator.communicate(timeout=60)
        assert coordinator.returncode == 0, errors
        assert worker.wait(timeout=30) == 0
        assert json.loads(output)["params_sha256"] == quiet_digest()
        assert TOKEN.decode() not in errors
    finally:
        door.close()
        stop(coordinator)


def test_who_holds_the_token_and_says_the_right_things_is_let_in(tmp_path):
    """The counter-test: the same hello, with its own proof, opens the door."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_bytes(TOKEN)
    port = free_port()
    coordinator = start_rank(0, port, token, *MORE)
    try:
        wait_for_listeners(coordinator.pid)
        sock = shake(("127.0.0.1", port), GOOD, TOKEN)
        sock.close()
    finally:
        stop(coordinator)
