"""A small shared table by which ranks find each other: set a key, wait for a key.

`Store` is the interface; the server holds the table on rank 0, and clients reach it from the
others. Keys are written once, so that whoever has read one has read it for good. Knows no sockets.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Final

from rlx.errors import LimitExceeded, UsageError
from rlx.net.deadline import Deadline

MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 1 << 20
MAX_KEYS: Final = 1 << 16
MAX_TABLE_BYTES: Final = 1 << 26
DEFAULT_SET_S: Final = 60.0

# Request: what, key bytes, value bytes, number of the request; then key and value.
REQUEST: Final = struct.Struct("<BxHII")
# Answer: outcome, value bytes, number of the request; then the value.
ANSWER: Final = struct.Struct("<B3xII")
SET: Final = 1
GET: Final = 2
PEEK: Final = 3
HERE: Final = 0
ABSENT: Final = 1
ANOTHER: Final = 2
FULL: Final = 3


class Store(ABC):
    """A table of keys (text, at most 256 bytes) and values (at most 1 MiB), written once.

    All methods may be called from several threads.
    """

    @abstractmethod
    def set(self, key: str, value: bytes, *, deadline: Deadline | None = None) -> None:
        """Set a key; setting it again to the same value is fine. 60 seconds unless told.

        Raises
        ------
        UsageError
            The key or value is too big, or the key has another value already.
        LimitExceeded
            The table is full.
        """

    @abstractmethod
    def get(self, key: str, *, deadline: Deadline) -> bytes:
        """The value of a key, as soon as somebody has set it; else DeadlineExceeded."""

    @abstractmethod
    def peek(self, key: str, *, deadline: Deadline) -> bytes | None:
        """The value of a key if it is set. The deadline is for the way there and back."""

    @abstractmethod
    def close(self) -> None:
        """Leave. Twice is fine."""


def check_entry(key: str, value: bytes = b"") -> bytes:
    name = key.encode()
    if not 0 < len(name) <= MAX_KEY_BYTES:
        raise UsageError(f"a key has 1 to {MAX_KEY_BYTES} bytes; {key[:80]!r} has {len(name)}")
    if len(value) > MAX_VALUE_BYTES:
        raise UsageError(
            f"the value of {key!r} has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}"
        )
    return name


def raise_for(outcome: int, key: str) -> None:
    if outcome == ANOTHER:
        raise UsageError(
            f"the key {key!r} has another value already; do two processes claim the same rank?"
        )
    if outcome == FULL:
        raise LimitExceeded(f"the store is full; the key {key!r} was not set")
