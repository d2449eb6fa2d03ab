"""The symmetric heap: memory of one rank that others address as if it were theirs.

An optional capability of a transport (`NetTransport.heap`). Ranks are near when they share memory:
processes of one host, or threads. What lies in one's own heap can be lent: a peer that is told the
location borrows the memory itself, and reads or writes there without a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Heap(ABC):
    """One rank's side of the heap. All methods may be called from any thread.

    The heap orders nothing: a rank that has written to borrowed memory says so in a message, and
    what it wrote is there when the message has come.
    """

    @property
    @abstractmethod
    def near(self) -> frozenset[int]:
        """The peers that can borrow from this rank, and it from them. Without this rank itself."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> tuple[int, memoryview] | None:
        """`size_bytes` of this rank's heap, aligned to 64 bytes, and their location.

        None where the heap has no such room, or where any memory can be lent. The memory is zeroed
        when it is first used, and holds anything later. It is the caller's until `free`.
        """

    @abstractmethod
    def free(self, location: int) -> None:
        """Give back what `allocate` gave. May be called by the garbage collector, at any point."""

    @abstractmethod
    def retire(self) -> None:
        """Allocate no more: a call has failed, and peers may still write to what it had lent."""

    @abstractmethod
    def lend(self, memory: memoryview) -> int | None:
        """A location at which near peers can borrow `memory`, or None where they cannot.

        `memory` is writable, not empty, C-contiguous and of format "B". It stays lent until
        `take_back`.
        """

    @abstractmethod
    def take_back(self, location: int) -> None:
        """Lend no more. Peers that hold a view of it still can use it; tell them first."""

    @abstractmethod
    def borrow(self, peer: int, location: int, size_bytes: int) -> memoryview:
        """`size_bytes` of the memory of near rank `peer`, writable, beginning at `location`.

        A location inside of what was lent is the lender's location plus the distance in bytes.

        Raises
        ------
        Malformed
            There is no such memory: the peer sent a location that it does not have.
        """
