"""`rlx train -n N` over TCP: start N processes here, wait for them, and end all when one fails."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import IO, TextIO

from rlx.errors import ConnectError
from rlx.job.reports import (
    REPORT_LIMIT_BYTES,
    REPORT_VARIABLE,
    Ended,
    cause_of,
    read_report,
    summary,
)
from rlx.job.tether import LAUNCHER_VARIABLE
from rlx.net import parse_address

LISTENER_VARIABLE = "RLX_LISTENER_FD"
_GRACE_S = 3.0
_POLL_S = 0.02


def launch(
    arguments: Sequence[str],
    ranks: int,
    coordinator: str,
    environ: Mapping[str, str],
    *,
    debug: bool = False,
) -> int:
    """Run `rlx` with `arguments` on `ranks` processes; return the status of the one to blame.

    Rank 0 writes to this process's own output; lines of the others are marked with their rank. When
    a rank fails, the rest have a few seconds to end, and are then ended; what is printed at last
    names the cause first. SIGINT, SIGTERM and SIGHUP end all ranks, and so does the death of this
    process.

    Each launch has a fresh token, in a file without a name that the ranks inherit.
    """
    host, port = parse_address(coordinator)
    with _listening(host, port) as listener, _token_file() as token, _Ranks(debug) as started:
        bound = listener.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        base = {
            **environ,
            "RLX_WORLD_SIZE": str(ranks),
            "RLX_COORDINATOR": f"{shown}:{bound[1]}",
            "RLX_TOKEN_FILE": f"/proc/self/fd/{token}",
            LAUNCHER_VARIABLE: str(os.getpid()),
        }
        for rank in range(ranks):
            started.start(rank, arguments, base, token, listener)
        listener.close()
        return started.wait()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConnectError(
            f"rank 0 cannot listen on {host}:{port}: {error.strerror}; choose another port, or 0 "
            f"for any free one, with --set net.coordinator={host}:0"
        ) from error


@contextlib.contextmanager
def _token_file() -> Iterator[int]:
    """The descriptor of a file without a name that holds a fresh token."""
    with tempfile.TemporaryFile(prefix="rlx-") as file:
        file.write(secrets.token_hex(32).encode())
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        yield file.fileno()


class _Rank:
    """One process, the pipe of its report, and the threads that pass its lines on."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], report_fd: int) -> None:
        self.rank = rank
        self.process = process
        self.stopped = False  # whether this launcher ended it
        self._report_fd = report_fd
        self._relays: list[threading.Thread] = []
        for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if stream is not None:
                relay = threading.Thread(target=_relay, args=(rank, stream, target), daemon=True)
                relay.start()
                self._relays.append(relay)

    def ended(self) -> Ended:
        """How it ended; for a process that has."""
        for relay in self._relays:
            relay.join(_GRACE_S)
        content = b""
        if self._report_fd >= 0:
            # A rank's own children may hold the pipe open: take what is there, and do not wait.
            os.set_blocking(self._report_fd, False)
            with contextlib.suppress(BlockingIOError):
                content = os.read(self._report_fd, REPORT_LIMIT_BYTES)
            os.close(self._report_fd)
            self._report_fd = -1
        return Ended(self.rank, self.process.returncode, read_report(content), self.stopped)


class _Ranks:
    """The processes of one launch. Leaving the context ends whatever still runs."""

    def __init__(self, debug: bool) -> None:
        self._debug = debug
        self._ranks: list[_Rank] = []
        self._order: list[_Rank] = []  # as they ended
        self._signal: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _Ranks:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end(0.0)
        for one in self._ranks:
            one.ended()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def start(
        self,
        rank: int,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        token_fd: int,
        listener: socket.socket,
    ) -> None:
        """Start one rank. Rank 0 inherits the listener, so that no other process can take its
        port."""
        reading, writing = os.pipe()
        own = {**environ, "RLX_RANK": str(rank), REPORT_VARIABLE: str(writing)}
        inherited = [token_fd, writing]
        if rank == 0:
            own[LISTENER_VARIABLE] = str(listener.fileno())
            inherited.append(listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "rlx", *arguments],
            env=own,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.PIPE,
            stderr=None if rank == 0 else subprocess.PIPE,
        )
        os.close(writing)
        self._ranks.append(_Rank(rank, process, reading))

    def wait(self) -> int:
        """Until all have ended, or one has failed and the rest have been ended."""
        while self._signal is None:
            self._note_ends()
            if any(one.process.returncode for one in self._order):
                return self._failed()
            if len(self._order) == len(self._ranks):
                return 0
            time.sleep(_POLL_S)
        self._end(_GRACE_S)
        return 128 + self._signal

    def _failed(self) -> int:
        self._end(_GRACE_S)
        ended = [one.ended() for one in self._order]
        sys.stdout.flush()
        sys.stderr.write(summary(ended, self._debug))
        return _status(cause_of(ended).code)

    def _note_ends(self) -> None:
        for one in self._ranks:
            if one not in self._order and one.process.poll() is not None:
                self._order.append(one)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _end(self, grace_s: float) -> None:
        """Give the ranks `grace_s` to end by themselves, then SIGTERM, then SIGKILL."""
        self._await(0.0 if self._signal is not None else grace_s)
        for end in (signal.SIGTERM, signal.SIGKILL):
            for one in self._ranks:
                if one.process.poll() is None:
                    one.stopped = True
                    one.process.send_signal(end)
            self._await(1.0)

    def _await(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._note_ends()
        while len(self._order) < len(self._ranks) and time.monotonic() < end:
            time.sleep(_POLL_S)
            self._note_ends()


def _relay(rank: int, stream: IO[bytes], target: TextIO) -> None:
    """Pass lines on whole, each with its rank before it."""
    for raw in iter(stream.readline, b""):
        line = raw.decode(errors="replace").rstrip("\r\n")
        target.write(f"[rank {rank}] {line}\n")
        target.flush()


def _status(code: int) -> int:
    """A shell's status of an exit code: 128 + the signal for one that a signal ended."""
    return 128 - code if code < 0 else code
