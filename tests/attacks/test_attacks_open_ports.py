"""What a running job listens on, and what strangers can do to it there: nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import DIGITS, clean_environment, family

LONG = ("--set", "job.epochs=300")

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc/net/tcp"
)


def sockets_of(pids: set[int]) -> set[str]:
    inodes = set()
    for pid in pids:
        try:
            for link in (Path("/proc") / str(pid) / "fd").iterdir():
                target = os.readlink(link)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    return inodes


def listening(pid: int) -> set[tuple[str, int]]:
    """(address, port) of every listening TCP socket of a process and its children."""
    inodes = sockets_of(family(pid))
    found = set()
    for table, kind in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (Path("/proc/net") / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A" or fields[9] not in inodes:
                continue
            raw, port = fields[1].split(":")
            words = [raw[i : i + 8] for i in range(0, len(raw), 8)]
            packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
            found.add((socket.inet_ntop(kind, packed), int(port, 16)))
    return found


def start_rank(rank: int, port: int, token: Path, *more: str) -> subprocess.Popen:
    environment = clean_environment(
        RLX_RANK=str(rank),
        RLX_WORLD_SIZE="2",
        RLX_COORDINATOR=f"127.0.0.1:{port}",
        RLX_TOKEN_FILE=str(token),
    )
    return subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(DIGITS), "--json", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for_listeners(pid: int, seconds: float = 20) -> set[tuple[str, int]]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = listening(pid)
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing listens")


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a token that nobody guesses")
    return path


def quiet_digest() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlx", "train", str(DIGITS), "--json", "--set", "job.epochs=2"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)["params_sha256"]


def stop(*processes: subprocess.Popen) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)


def test_a_waiting_coordinator_listens_on_its_one_address(token):
    port = free_port()
    coordinator = start_rank(0, port, token)
    try:
        found = wait_for_listeners(coordinator.pid)
        assert ("127.0.0.1", port) in found
        assert {address for address, _ in found} == {"127.0.0.1"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=2)
    finally:
        stop(coordinator)


def test_a_launched_job_listens_on_loopback_alone_and_then_on_nothing(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(DIGITS), "-n", "3", *LONG],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: set[tuple[str, int]] = set()
    quiet_since = None
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            now = listening(process.pid)
            seen |= now
            if seen and not now:
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since > 0.5:
                    break
            else:
                quiet_since = None
        assert seen
        assert {address for address, _ in seen} == {"127.0.0.1"}
        assert quiet_since is not None, "a port stays open while the job trains"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=15)


class Marker:
    """What a hostile pickle would do: make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_strangers_at_the_door_change_nothing(token, tmp_path):
    import pickle

    marker = tmp_path / "marker"
    payloads = [
        pickle.dumps(Marker(marker)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(4096),
        b"\xff" * 4096,
        b"",
    ]
    port = free_port()
    more = ("--set", "job.epochs=2")
    coordinator = start_rank(0, port, token, *more)
    strangers = []
    try:
        wait_for_listeners(coordinator.pid)
        for payload in payloads * 5:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
            stranger.settimeout(10)
            stranger.sendall(payload)
            strangers.append(stranger)
        worker = start_rank(1, port, token, *more)
        output, errors = coordinator.communicate(timeout=60)
        assert coordinator.returncode == 0, errors
        assert worker.wait(timeout=30) == 0
        assert json.loads(output)["params_sha256"] == quiet_digest()
        for stranger in strangers:
            answer = b""
            try:
                while part := stranger.recv(4096):
                    answer += part
            except ConnectionError:
                pass
            assert len(answer) < 256
            assert b"token" not in answer
    finally:
        for stranger in strangers:
            stranger.close()
        stop(coordinator)
    assert not marker.exists()


def test_the_token_is_in_no_argument_list(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(DIGITS), "-n", "2", *LONG],
        env=clean_environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end and len(family(process.pid)) < 3:
            time.sleep(0.01)
        worker = next(pid for pid in family(process.pid) if pid != process.pid)
        variables = (Path("/proc") / str(worker) / "environ").read_bytes().split(b"\0")
        name = next(one for one in variables if one.startswith(b"RLX_TOKEN_FILE=")).decode()
        number = name.rpartition("/")[2]
        secret = (Path("/proc") / str(worker) / "fd" / number).read_text()
        assert len(secret) == 64
        for pid in family(process.pid):
            for name in ("cmdline", "environ"):
                assert secret.encode() not in (Path("/proc") / str(pid) / name).read_bytes()
    finally:
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=15)
    assert secret not in output + errors
    assert not list(tmp_path.iterdir()), "the launcher leaves no file behind"
