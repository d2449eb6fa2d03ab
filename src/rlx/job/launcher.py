"""`rlx train -n N` over TCP: start N processes here, wait for them, and end all when one fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from rlx.errors import ConnectError
from rlx.net import parse_address

LISTENER_VARIABLE = "RLX_LISTENER_FD"
_GRACE_S = 3.0
_POLL_S = 0.02


def launch(
    arguments: Sequence[str], ranks: int, coordinator: str, environ: Mapping[str, str]
) -> int:
    """Run `rlx` with `arguments` on `ranks` processes; return the status of the first that failed.

    Rank 0 writes to this process's own output; lines of the others are marked with their rank. When
    a rank fails, the rest have a few seconds to say why, and are then ended. SIGINT, SIGTERM and
    SIGHUP end all ranks. A fresh token, in a file that only this user can read, keeps strangers
    out.
    """
    host, port = parse_address(coordinator)
    folder = Path(tempfile.mkdtemp(prefix="rlx-"))
    try:
        token_file = folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(secrets.token_hex(32))
        with _listening(host, port) as listener, _Ranks() as started:
            bound = listener.getsockname()
            shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
            base = {
                **environ,
                "RLX_WORLD_SIZE": str(ranks),
                "RLX_COORDINATOR": f"{shown}:{bound[1]}",
                "RLX_TOKEN_FILE": str(token_file),
            }
            for rank in range(ranks):
                started.start(rank, arguments, base, listener)
            listener.close()
            return started.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConnectError(
            f"rank 0 cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 "
            f"for any free one, with --set net.coordinator={host}:0"
        ) from error


class _Ranks:
    """The processes of one launch. Leaving the context ends whatever still runs."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._relays: list[threading.Thread] = []
        self._signal: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _Ranks:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end(0.0 if any(exception) else _GRACE_S)
        for relay in self._relays:
            relay.join(_GRACE_S)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def start(
        self,
        rank: int,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        listener: socket.socket,
    ) -> None:
        """Start one rank; rank 0 inherits the listener, so that no other process can take its
        port."""
        own = {**environ, "RLX_RANK": str(rank)}
        pass_fds: tuple[int, ...] = ()
        if rank == 0:
            own[LISTENER_VARIABLE] = str(listener.fileno())
            pass_fds = (listener.fileno(),)
        process = subprocess.Popen(
            [sys.executable, "-m", "rlx", *arguments],
            env=own,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.PIPE,
            stderr=None if rank == 0 else subprocess.PIPE,
        )
        self._processes.append(process)
        for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if stream is not None:
                relay = threading.Thread(target=_relay, args=(rank, stream, target), daemon=True)
                relay.start()
                self._relays.append(relay)

    def wait(self) -> int:
        """Until all have ended, or one has failed and the rest have been ended."""
        while self._signal is None:
            codes = [process.poll() for process in self._processes]
            failed = [code for code in codes if code]
            if failed:
                self._end(_GRACE_S)
                return _status(failed[0])
            if all(code == 0 for code in codes):
                return 0
            time.sleep(_POLL_S)
        self._end(_GRACE_S)
        return 128 + self._signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _end(self, grace_s: float) -> None:
        """Give the ranks `grace_s` to end by themselves, then SIGTERM, then SIGKILL."""
        if self._signal is None:
            self._join(grace_s)
        for end in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, end)
            self._join(1.0)

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))


def _relay(rank: int, stream: IO[bytes], target: TextIO) -> None:
    for line in _lines(stream):
        target.write(f"[rank {rank}] {line}\n")
        target.flush()


def _lines(stream: IO[bytes]) -> Iterator[str]:
    for raw in iter(stream.readline, b""):
        yield raw.decode(errors="replace").rstrip("\r\n")


def _status(code: int) -> int:
    """A shell's status of an exit code: 128 + the signal for one that a signal ended."""
    return 128 - code if code < 0 else code
