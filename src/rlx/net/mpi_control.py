"""What the ranks of an MPI transport say beside the data: why a job fails, and goodbye.

It travels on a communicator of its own, so that it is heard whatever the data waits for. Every
method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rlx.errors import WireError
from rlx.net.notices import MAX_NOTICE_BYTES, Notice

_PART_TAG = 1
_NOTICE_TAG = 2
_GOODBYE_TAG = 3

PART_BYTES = 1024
"""A notice goes in parts below the eager limit of common MPIs, so that it arrives even when the
rank that sent it makes no further MPI call."""


class ControlChannel:
    """One rank's end. `failure` is the first failure heard of; `left` says when a peer was heard
    to say goodbye, by the monotonic clock."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._world_size: int = comm.Get_size()
        self._status = mpi.Status()
        self._parts: dict[int, bytearray] = {}
        self._hearing: tuple[int, int, bytearray, Any] | None = None
        self._saying: list[Any] = []
        self._said: list[bytes] = []  # what MPI reads stays alive with its request
        self._reports_deaths = self._can_report_deaths()
        self.failure: Notice | None = None
        self.left: dict[int, float] = {}

    def fail(self, notice: Notice) -> None:
        """Record why the job ends; the first reason stays."""
        if self.failure is None:
            self.failure = notice

    def tell(self, notice: Notice) -> None:
        """Say to every other rank why the job fails; `is_said` tells when it has gone."""
        content = notice.encode()
        cuts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        for part in cuts[:-1]:
            self._say(_PART_TAG, part)
        self._say(_NOTICE_TAG, cuts[-1])

    def say_goodbye(self) -> None:
        """Say to every other rank that this one leaves in order."""
        self._say(_GOODBYE_TAG, b"")

    def is_said(self) -> bool:
        """Whether MPI has taken over all that was said."""
        left = []
        for request in self._saying:
            try:
                if not request.Test():
                    left.append(request)
            except self._mpi.Exception as error:
                self._forgive(error)
        self._saying = left
        return not left

    def is_alone(self) -> bool:
        """Whether every other rank has said goodbye: nothing more will come."""
        return len(self.left) == self._world_size - 1

    def hear(self) -> None:
        """Take what the others have said."""
        while self.failure is None:
            if self._hearing is None:
                message = self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, self._status)
                if message is None:
                    return
                content = bytearray(self._status.Get_count(self._mpi.BYTE))
                request = message.Irecv([content, self._mpi.BYTE])
                source, tag = self._status.Get_source(), self._status.Get_tag()
                self._hearing = source, tag, content, request
            source, tag, content, request = self._hearing
            if not request.Test():
                return
            self._hearing = None
            self._take(source, tag, content)

    def find_dead(self) -> int | None:
        """A rank that the MPI library knows to have died, where it can know."""
        if not self._reports_deaths:
            return None
        failed = self._comm.Get_failed()
        if not failed.Get_size():
            return None
        return int(self._mpi.Group.Translate_ranks(failed, [0], self._comm.Get_group())[0])

    def _can_report_deaths(self) -> bool:
        try:
            self._comm.Get_failed()
        except (AttributeError, NotImplementedError, self._mpi.Exception):
            # An older mpi4py, or a library without fault tolerance: its launcher ends the job.
            return False
        return True

    def _take(self, source: int, tag: int, content: bytearray) -> None:
        if tag == _GOODBYE_TAG:
            self.left[source] = time.monotonic()
            return
        notice = self._parts.setdefault(source, bytearray())
        notice += content
        if len(notice) > MAX_NOTICE_BYTES:
            self.fail(Notice(source, False, "LimitExceeded", "it sent a notice over the limit"))
        elif tag == _NOTICE_TAG:
            self.fail(self._decode(source, bytes(notice)))

    def _decode(self, source: int, content: bytes) -> Notice:
        try:
            return Notice.decode(content, self._world_size)
        except WireError as error:
            return Notice(source, False, type(error).__name__, f"its notice is wrong: {error}")

    def _say(self, tag: int, content: bytes) -> None:
        self._said.append(content)
        for peer in self._others():
            try:
                self._saying.append(self._comm.Isend([content, self._mpi.BYTE], peer, tag))
            except self._mpi.Exception as error:
                self._forgive(error)

    def _forgive(self, error: Any) -> None:
        """A peer that cannot be told is dead. The others are told all the same."""
        self.fail(Notice(self._rank, False, "MPIError", f"a peer cannot be reached: {error}"))

    def _others(self) -> Iterable[int]:
        return (peer for peer in range(self._world_size) if peer != self._rank)
