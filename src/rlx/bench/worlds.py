"""Worlds of ranks, each started once, which are measured in turns and sleep in between."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rlx import job
from rlx.bench import contenders
from rlx.bench.lines import Lines, Message
from rlx.errors import LimitExceeded, RlxError, UsageError
from rlx.net import Deadline

START_S = 90.0
ANSWER_S = 180.0
_STOP_S = 5.0
_LOST_STOP_S = 0.5
_END_S = 2.0
_LOOK_S = 0.2
_PATH_LIMIT_BYTES = 107  # sockaddr_un, linux/un.h
_REASON_CHARACTERS = 300


class WorldLost(RlxError):
    """A world did not start, or one of its ranks has failed or died; it has been ended."""


class World:
    """The processes of one world, and a socket to each of its ranks.

    Made by `start`. After `WorldLost`, from any method, its processes are ended and only `close`
    may be called. Used by one thread.
    """

    def __init__(self, name: str, ranks: int, folder: Path) -> None:
        self.name = name
        self.about = ""
        self._ranks = ranks
        self._patience_s = _LOST_STOP_S
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: dict[int, Lines] = {}
        self._waiting: list[Lines] = []  # connected, rank not known yet
        self._path = folder / f"{name}.socket"
        self._errors = (folder / f"{name}.errors").open("w+b")

    @classmethod
    def start(
        cls,
        name: str,
        members: list[str],
        ranks: int,
        folder: Path,
        environ: Mapping[str, str],
        *,
        deadline: Deadline | None = None,
    ) -> World:
        """Start the ranks, and return when all are ready; `members` are who is measured in it.

        Raises `WorldLost` with the reason where they are not.
        """
        world = cls(name, ranks, folder)
        try:
            with world._losing():
                world._start(members, environ, deadline or Deadline(START_S))
        except BaseException:
            world.close()
            raise
        return world

    @property
    def pids(self) -> list[int]:
        """The processes that were started here: the ranks, or what started them."""
        return [process.pid for process in self._processes]

    def ask(self, told: Mapping[int, Message], deadline: Deadline | None = None) -> list[Message]:
        """Tell some ranks what to do; their answers, in the order of `told`."""
        with self._losing():
            for rank, message in told.items():
                self._lines[rank].send(message)
            return self._answers(list(told), deadline or Deadline(ANSWER_S))

    def ask_all(self, message: Message, deadline: Deadline | None = None) -> list[Message]:
        """Tell every rank the same; their answers, in rank order."""
        return self.ask(dict.fromkeys(range(self._ranks), message), deadline)

    def close(self) -> None:
        """Stop the ranks, within seconds; by signals, those that do not stop. Twice is fine."""
        for lines in self._lines.values():
            with contextlib.suppress(OSError):
                lines.send({"do": "stop"})
        self._await_end(self._patience_s)
        for lines in (*self._lines.values(), *self._waiting):
            lines.close()
        # mpirun ends its ranks when it is asked to end, and cannot when it is killed.
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(number)
            self._await_end(_END_S)
        self._lines, self._waiting = {}, []
        self._errors.close()
        self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        """Whatever goes wrong with a rank ends its world, with the reason."""
        try:
            yield
        except (EOFError, OSError, LimitExceeded, ValueError, RlxError) as error:
            self._patience_s = _LOST_STOP_S
            reason = self._reason(error)
            self.close()
            raise WorldLost(reason) from error

    def _start(self, members: list[str], environ: Mapping[str, str], deadline: Deadline) -> None:
        if len(os.fsencode(self._path)) > _PATH_LIMIT_BYTES:
            raise UsageError(f"{self._path} is too long for a socket; set TMPDIR to a shorter path")
        program = [sys.executable, "-m", "rlx.bench.rank_main", self.name, str(self._path)]
        program.append(str(self._ranks))
        command_lines = contenders.commands(self.name, self._ranks, program)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen(self._ranks)
            for command_line in command_lines:
                self._processes.append(self._process(command_line, environ))
            self._meet(listener, deadline)
        self._say_hello(members, deadline)

    def _process(
        self, command_line: list[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        tie = {job.LAUNCHER_VARIABLE: str(os.getpid())} if command_line[0] == sys.executable else {}
        return subprocess.Popen(
            command_line,
            env={**environ, **contenders.environment(self.name), **tie},
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            # Ctrl-C reaches this process alone, which ends the worlds in order.
            start_new_session=True,
        )

    def _meet(self, listener: socket.socket, deadline: Deadline) -> None:
        """Wait for as many connections as there are ranks."""
        listener.settimeout(_LOOK_S)
        while len(self._waiting) < self._ranks:
            with contextlib.suppress(TimeoutError):
                self._waiting.append(Lines(listener.accept()[0]))
                continue
            if deadline.expired():
                raise TimeoutError(f"its ranks did not come within {deadline.seconds:g} s")
            if any(process.poll() is not None for process in self._processes):
                raise EOFError("a process ended before it was there")

    def _say_hello(self, members: list[str], deadline: Deadline) -> None:
        """Learn who is who, tell all where the others are, and wait until all are ready."""
        hellos = self._collect(self._waiting, deadline)
        by_rank = {int(hello["rank"]): place for place, hello in enumerate(hellos)}
        if set(by_rank) != set(range(self._ranks)):
            raise ValueError(f"the ranks that came are {sorted(by_rank)}")
        self._lines = {rank: self._waiting[by_rank[rank]] for rank in range(self._ranks)}
        self._waiting = []
        message: Message = {
            "contenders": members,
            "addresses": [hellos[by_rank[rank]]["address"] for rank in range(self._ranks)],
            "token": secrets.token_hex(32),
        }
        self.about = self.ask_all(message, deadline)[0]["ready"]
        self._patience_s = _STOP_S

    def _answers(self, ranks: list[int], deadline: Deadline) -> list[Message]:
        return self._collect([self._lines[rank] for rank in ranks], deadline)

    def _collect(self, expected: list[Lines], deadline: Deadline) -> list[Message]:
        """A message from each, whichever comes first."""
        found: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            for place, lines in enumerate(expected):
                selector.register(lines.socket, selectors.EVENT_READ, place)
            while len(found) < len(expected):
                if deadline.expired():
                    raise TimeoutError(f"no answer within {deadline.seconds:g} s")
                for key, _ in selector.select(deadline.remaining()):
                    self._read(expected, key.data, found)
                    if key.data in found:
                        selector.unregister(key.fileobj)
        return [found[place] for place in range(len(expected))]

    def _read(self, expected: list[Lines], place: int, found: dict[int, Message]) -> None:
        expected[place].feed()
        message = expected[place].taken()
        if message is None:
            return
        if "failed" in message:
            raise UsageError(str(message["failed"]))
        found[place] = message

    def _reason(self, error: BaseException) -> str:
        """Why a world is lost: what a rank said, or how its process ended."""
        if isinstance(error, RlxError | TimeoutError):
            return str(error)
        self._await_end(_END_S, any)
        for process in self._processes:
            if process.returncode:
                return f"{_ending(process.returncode)}{self._last_words()}"
        return f"{error}{self._last_words()}"

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().replace(b"\0", b"").decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
        return f": {lines[-1][:_REASON_CHARACTERS]}" if lines else ""

    def _await_end(self, seconds: float, enough: Callable[[list[bool]], bool] = all) -> None:
        """Wait until all processes have ended, or any of them; for so long at most."""
        deadline = Deadline(seconds)
        while not enough([process.poll() is not None for process in self._processes]):
            if deadline.expired():
                return
            time.sleep(0.01)


def _ending(code: int) -> str:
    if code < 0:
        return f"a process was ended by {signal.Signals(-code).name}"
    return f"a process ended with status {code}"
