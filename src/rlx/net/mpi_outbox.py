"""Small messages that MPI has been given and has not yet read: copies, so nobody waits for them.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

from collections import deque
from typing import Any

ROOM_BYTES = 64 << 20
"""More than this is not copied ahead of the receivers: the senders wait."""


class Outbox:
    """The copies and their requests. `requests` keeps both alive for as long as MPI reads them."""

    def __init__(self, mpi: Any, comm: Any, room_bytes: int = ROOM_BYTES) -> None:
        self._comm = comm
        self._byte = mpi.BYTE
        self._room_bytes = room_bytes
        self._under_way_bytes = 0
        self.requests: deque[tuple[bytes, Any]] = deque()

    def post(self, content: bytes, peer: int, tag: int) -> None:
        """Send `content`, which nobody changes."""
        request = self._comm.Isend((content, self._byte), peer, tag)
        if not request.Test():
            self.requests.append((content, request))
            self._under_way_bytes += len(content)
            self._drop_the_oldest()

    def has_room(self) -> bool:
        """Whether more may be posted before what is under way has been read."""
        if self._under_way_bytes > self._room_bytes:
            self.is_empty()
        return self._under_way_bytes <= self._room_bytes

    def is_empty(self) -> bool:
        """Whether MPI has read all that was posted."""
        for _ in range(len(self.requests)):
            content, request = self.requests[0]
            done = request.Test()
            # In place: the queue itself is what keeps the copies alive.
            if not done:
                self.requests.append((content, request))
            else:
                self._under_way_bytes -= len(content)
            self.requests.popleft()
        return not self.requests

    def _drop_the_oldest(self) -> None:
        """What MPI has read meanwhile, so that a steady stream of messages keeps only a few."""
        while self.requests and self.requests[0][1].Test():
            content, _ = self.requests.popleft()
            self._under_way_bytes -= len(content)
