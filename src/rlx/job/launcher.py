"""`rlx train -n N` over TCP: start N processes here, wait for them, and end all when one fails."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from rlx.errors import ConfigError, ConnectError
from rlx.job.output import Output, pipe, say
from rlx.job.reports import (
    REPORT_LIMIT_BYTES,
    REPORT_VARIABLE,
    Ended,
    cause_of,
    is_sure,
    read_report,
    summary,
)
from rlx.job.tether import LAUNCHER_VARIABLE
from rlx.net import parse_address

LISTENER_VARIABLE = "RLX_LISTENER_FD"
_GRACE_S = 3.0
_SURE_GRACE_S = 0.3  # once it is clear whose fault it was
_POLL_S = 0.02
_FILES_EACH = 4  # two to each peer, one to whoever asks rank 0 where they are; this process has 3
_FILES_BESIDE = 64  # what any process needs


def launch_ranks(
    arguments: Sequence[str],
    ranks: int,
    coordinator: str,
    environ: Mapping[str, str],
    *,
    debug: bool = False,
) -> int:
    """Run `rlx` with `arguments` on `ranks` processes; return the status of the one to blame.

    What a rank prints comes out in whole lines, each marked with its rank; the job's progress and
    its result, which rank 0 says, are not marked, and the result comes last. When a rank fails, the
    rest have a few seconds to end, and are then ended; what is printed at last names the cause
    first. SIGINT, SIGTERM and SIGHUP end all ranks, unless they are ignored, as nohup has it; and
    so does the death of this process.

    Each launch has a fresh token, in a file without a name that the ranks inherit.
    """
    host, port = parse_address(coordinator, name="net.coordinator")
    _make_room(ranks)
    with _listening(host, port) as listener, _token_file() as token, _Ranks(ranks) as started:
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
        started.wait()
    return _verdict(started, debug)


def _make_room(ranks: int) -> None:
    """Raise the limit of open files to what a rank of a full mesh needs, and this process.

    The ranks inherit it. Raises `ConfigError` where the system allows no more.
    """
    needed = _FILES_BESIDE + _FILES_EACH * ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"-n {ranks}: {ranks} ranks on one host need {needed} open files each, and the limit "
            f"is {hard} (ulimit -Hn); ask for fewer ranks, or start them on several hosts"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        # Python tells the address again, behind the reason; a failed look-up has a number below 0.
        reason = (error.strerror or str(error)).partition(" (while")[0]
        is_elsewhere = error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0
        hint = f"choose another port, or 0 for any free one, with --set net.coordinator={shown}:0"
        if is_elsewhere:
            hint = "give an address of this machine, such as --set net.coordinator=127.0.0.1:0"
        raise ConnectError(f"rank 0 cannot listen on {shown}:{port}: {reason}; {hint}") from error


@contextlib.contextmanager
def _token_file() -> Iterator[int]:
    """The descriptor of a file without a name that holds a fresh token."""
    with tempfile.TemporaryFile(prefix="rlx-") as file:
        file.write(secrets.token_hex(32).encode())
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        yield file.fileno()


@dataclass
class _Rank:
    """One process, and the pipe of its report."""

    rank: int
    process: subprocess.Popen[bytes]
    report_fd: int
    is_stopped: bool = False  # whether this launcher ended it

    def ended(self) -> Ended:
        """How it ended; for a process that has, once."""
        # A rank's own children may hold the pipe open: take what is there, and do not wait.
        os.set_blocking(self.report_fd, False)
        content = b""
        with contextlib.suppress(BlockingIOError):
            content = os.read(self.report_fd, REPORT_LIMIT_BYTES)
        os.close(self.report_fd)
        return Ended(self.rank, self.process.returncode, read_report(content), self.is_stopped)


class _Ranks:
    """The processes of one launch. Leaving the context ends whatever still runs."""

    def __init__(self, world_size: int) -> None:
        self.signal: int | None = None  # that this process was sent
        self.ended: list[Ended] = []  # in the order in which they ended
        self._world_size = world_size
        self._running: list[_Rank] = []
        self._previous: dict[int, object] = {}
        self._output = Output(os.environ)

    def __enter__(self) -> _Ranks:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup, and a shell that starts us in the background, have them ignored: so it stays.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()
        # Whoever reads our output may take all the time, as with any program; a signal ends that.
        while not self._output.finish(_GRACE_S) and self.signal is None:
            pass
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def output_error(self) -> OSError | None:
        """Why some of what the ranks printed could not be written, if so."""
        return self._output.error

    def start(
        self,
        rank: int,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        token_fd: int,
        listener: socket.socket,
    ) -> None:
        """Start one rank. Rank 0 inherits the listener, so that no other process can take its
        port. Raises `ConfigError` where the system has no room for one more."""
        try:
            with contextlib.ExitStack() as ours:
                report, writing = pipe(ours)
                files = self._output.files(rank, ours)
                told = {REPORT_VARIABLE: writing, **files.inherited}
                if rank == 0:
                    told[LISTENER_VARIABLE] = listener.fileno()
                own = {name: str(fd) for name, fd in told.items()}
                with _interrupts_held():
                    process = subprocess.Popen(
                        [sys.executable, "-m", "rlx", *arguments],
                        env={**environ, "RLX_RANK": str(rank), **own},
                        pass_fds=[token_fd, *told.values()],
                        stdin=subprocess.DEVNULL,
                        stdout=files.stdout,
                        stderr=files.stderr,
                    )
        except OSError as error:
            raise ConfigError(
                f"rank {rank} of {self._world_size} cannot be started here: {error.strerror}; ask "
                f"for fewer ranks with -n"
            ) from error
        self._running.append(_Rank(rank, process, report))

    def wait(self) -> None:
        """Until all have ended; or one has failed, and the rest had time to say why; or a
        signal."""
        end = float("inf")
        while self._running and self.signal is None and time.monotonic() < end:
            time.sleep(_POLL_S)
            self._note_ends()
            if any(one.code for one in self.ended):
                grace_s = _SURE_GRACE_S if is_sure(self.ended) else _GRACE_S
                end = min(end, time.monotonic() + grace_s)

    def _stop(self) -> None:
        """End what still runs: SIGTERM, then SIGKILL."""
        for end in (signal.SIGTERM, signal.SIGKILL):
            for one in self._running:
                one.is_stopped = True
                one.process.send_signal(end)
            last = time.monotonic() + 1.0
            while self._running and time.monotonic() < last:
                self._note_ends()
                time.sleep(_POLL_S)

    def _note_ends(self) -> None:
        for one in list(self._running):
            if one.process.poll() is not None:
                self._running.remove(one)
                self.ended.append(one.ended())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = number


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started in this context has SIGINT blocked, until it says otherwise: a
    terminal sends it to all processes of the job, and each would show where it was."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _verdict(ranks: _Ranks, debug: bool) -> int:
    """Say what went wrong, if anything; the status of the launch."""
    if ranks.signal is not None:
        name = signal.Signals(ranks.signal).name
        say("rlx: interrupted\n" if name == "SIGINT" else f"rlx: ended by {name}\n")
        return 128 + ranks.signal
    if any(one.code for one in ranks.ended):
        say(summary(ranks.ended, debug))
        code = cause_of(ranks.ended).code
        return 128 - code if code < 0 else code  # a shell's status for what a signal ended
    error = ranks.output_error
    if error is not None and error.errno != errno.EPIPE:
        say(f"rlx: error: what the ranks print cannot be written: {error.strerror}\n")
    return 0 if error is None else 1
