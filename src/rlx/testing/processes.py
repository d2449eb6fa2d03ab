"""`RankProcesses`: ranks that are real processes, to be killed, frozen and watched."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from rlx.errors import DeadlineExceeded, UsageError
from rlx.net import Deadline
from rlx.testing.outcomes import Failure, Outcome
from rlx.testing.proxy import FaultProxy, Route, proxied

_END_S: Final = 10.0
_LOOK_S: Final = 0.05
_READ_BYTES: Final = 64 * 1024


@dataclass
class _Process:
    """One rank: its process, and what it has said so far on each of its pipes."""

    rank: int
    popen: subprocess.Popen[bytes]
    pipes: dict[str, IO[bytes]]
    said: dict[str, bytearray] = field(
        default_factory=lambda: {
            "report": bytearray(),
            "stdout": bytearray(),
            "stderr": bytearray(),
        }
    )

    def text(self, name: str) -> str:
        return self.said[name].decode(errors="replace")

    def outcome(self) -> Outcome:
        status = self.popen.poll()
        report: dict[str, Any] = {}
        if self.said["report"].endswith(b"\n"):
            report = json.loads(self.said["report"])
        failure = report.get("failure")
        return Outcome(
            self.rank,
            report.get("result"),
            None if failure is None else Failure(**{**failure, "named": tuple(failure["named"])}),
            report.get("finished", False),
            status,
        )


class RankProcesses:
    """`world_size` processes of this host, each running `function(group, *arguments)` over TCP.

        with RankProcesses(3, "my_tests.ranks:train") as ranks:
            ranks.wait_for_line(2, "inside", deadline_s=10)
            killed_s = ranks.kill(2)
            outcomes = ranks.wait(deadline_s=20)

    Leaving the context kills whatever still runs. On Linux the kernel does so too when the thread
    that started the processes ends.

    Parameters
    ----------
    function
        "module:function", found from the current directory or `sys.path`. What it returns must be
        plain JSON. What it raises is told to the other ranks, and comes out of `wait`.
    arguments
        Further arguments of the function: plain JSON.
    proxy
        Put a route of this proxy on every link; `routes` then holds them by (higher rank, lower
        rank). The ranks share no memory, which would pass it by. The proxy is the caller's to
        close, after the ranks have ended.
    heartbeat_s
        A rank that is silent for this long is taken for dead.
    deadline_s
        How long one call of the group may take.
    environment
        More variables for the processes.
    """

    def __init__(
        self,
        world_size: int,
        function: str,
        arguments: Sequence[Any] = (),
        *,
        proxy: FaultProxy | None = None,
        heartbeat_s: float = 10.0,
        deadline_s: float = 60.0,
        join_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if world_size < 1:
            raise UsageError(f"a world has at least one rank; got {world_size}")
        if not all(function.partition(":")):
            raise UsageError(f"the function is named as 'module:function'; got {function!r}")
        self.routes: dict[tuple[int, int], Route] = {}
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        task = {
            "function": function,
            "arguments": list(arguments),
            "world_size": world_size,
            "heartbeat_s": heartbeat_s,
            "deadline_s": deadline_s,
            "join_s": join_s,
            "shared_memory": proxy is None,
        }
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "RLX_LAUNCHER_PID": str(os.getpid()),
            **(environment or {}),
        }
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(world_size)]
        try:
            addresses = [listener.getsockname() for listener in listeners]
            given = [addresses] * world_size
            if proxy is not None:
                given, self.routes = proxied(proxy, addresses)
            for rank, listener in enumerate(listeners):
                own = {**task, "rank": rank, "addresses": given[rank]}
                self._processes.append(self._start(own, listener, variables))
        except BaseException:
            self.close()
            raise
        finally:
            for listener in listeners:
                listener.close()

    @property
    def pids(self) -> list[int]:
        """The process ids, in rank order."""
        return [one.popen.pid for one in self._processes]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a signal to a rank; when that was (monotonic seconds). SIGSTOP freezes it."""
        at_s = time.monotonic()
        self._processes[rank].popen.send_signal(number)
        return at_s

    def freeze(self, rank: int) -> float:
        """Stop a rank where it is; when that was."""
        return self.kill(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> float:
        """Let a frozen rank go on; when that was."""
        return self.kill(rank, signal.SIGCONT)

    def printed(self, rank: int) -> str:
        """What a rank has written to its standard output so far."""
        return self._processes[rank].text("stdout")

    def complained(self, rank: int) -> str:
        """What a rank has written to its standard error so far."""
        return self._processes[rank].text("stderr")

    def wait_for_line(self, rank: int, line: str, *, deadline_s: float) -> None:
        """Until a rank has printed `line`.

        Raises
        ------
        DeadlineExceeded
            It has not in time, or it has ended without.
        """
        deadline = Deadline(deadline_s)
        one = self._processes[rank]
        while line not in one.text("stdout").splitlines():
            if deadline.expired() or "stdout" not in one.pipes:
                raise DeadlineExceeded(
                    f"rank {rank} has not printed {line!r} after {deadline.elapsed():.3g} s; "
                    f"it has printed {self.printed(rank)!r} and {self.complained(rank)!r}",
                    (rank,),
                )
            self._read(deadline)

    def wait(self, *, deadline_s: float, besides: Collection[int] = ()) -> list[Outcome]:
        """How each rank ended, in rank order. Ranks in `besides` are not waited for.

        A rank that has not ended in time, or was not waited for, has an outcome without status.
        """
        deadline = Deadline(deadline_s)
        awaited = [one for one in self._processes if one.rank not in besides]
        while any(one.pipes or one.popen.poll() is None for one in awaited):
            if deadline.expired():
                break
            self._read(deadline)
        return [one.outcome() for one in self._processes]

    def close(self) -> None:
        """Kill what still runs, frozen or not, and take in what was said. Twice is fine."""
        for one in self._processes:
            if one.popen.poll() is None:
                one.popen.kill()
        for one in self._processes:
            one.popen.wait(_END_S)
            for pipe in one.pipes.values():
                pipe.close()
            one.pipes.clear()
        self._selector.close()

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(
        self, task: dict[str, Any], listener: socket.socket, variables: Mapping[str, str]
    ) -> _Process:
        reading, writing = os.pipe()
        report = os.fdopen(reading, "rb", buffering=0)
        try:
            own = {**task, "listener_fd": listener.fileno(), "report_fd": writing}
            popen = subprocess.Popen(
                [sys.executable, "-m", "rlx.testing.process_rank", json.dumps(own)],
                env=dict(variables),
                pass_fds=(listener.fileno(), writing),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except BaseException:
            report.close()
            raise
        finally:
            os.close(writing)
        assert popen.stdout is not None
        assert popen.stderr is not None
        pipes = {"report": report, "stdout": popen.stdout, "stderr": popen.stderr}
        process = _Process(task["rank"], popen, pipes)
        for name, pipe in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (process, name))
        return process

    def _read(self, deadline: Deadline) -> None:
        """Take in what the ranks say, for a moment at most."""
        for key, _ in self._selector.select(min(_LOOK_S, deadline.remaining())):
            process, name = key.data
            with contextlib.suppress(BlockingIOError):
                data = os.read(key.fd, _READ_BYTES)
                process.said[name] += data
                if not data:
                    self._selector.unregister(key.fileobj)
                    process.pipes.pop(name).close()
