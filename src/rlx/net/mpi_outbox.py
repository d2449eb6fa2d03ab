"""Small messages that MPI has been given and has not yet read: copies, so nobody waits for them.

Every method is called under the transport's lock, and none blocks.
"""

from __future__ import annotations

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
        self.requests: list[tuple[bytes, Any]] = []

    def post(self, content: bytes, peer: int, tag: int) -> None:
        """Send `content`, which nobody changes."""
        request = self._comm.Isend([content, self._byte], peer, tag)
        if not request.Test():
            self.requests.append((content, request))
            self._under_way_bytes += len(content)

    def has_room(self) -> bool:
        """Whether more may be posted before what is under way has been read."""
        if self._under_way_bytes > self._room_bytes:
            self.is_empty()
        return self._under_way_bytes <= self._room_bytes

    def is_empty(self) -> bool:
        """Whether MPI has read all that was posted."""
        if self.requests:
            # In place: the list itself is what keeps the copies alive.
            self.requests[:] = [one for one in self.requests if not one[1].Test()]
            self._under_way_bytes = sum(len(content) for content, _ in self.requests)
        return not self.requests
