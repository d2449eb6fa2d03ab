"""A window: an array on every rank that all ranks may write to and read from, between two fences.

What SHMEM and MPI call put and get, with one difference: nothing moves before `fence`, which is
collective. Reads then see what was there before, and writes come after them in the order of the
ranks, and of each rank's calls. So what a window holds depends on no timing and no transport.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.errors import Malformed, UsageError
from rlx.group import arrays

_COUNTS = struct.Struct("<QQ")  # writes, reads
_PART = struct.Struct("<QQ")  # first element, elements

Part: TypeAlias = tuple[int, int]
AllToAll: TypeAlias = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Part r of what is given goes to rank r; returns what each rank had for this one."""


class Window:
    """One rank's side of a window, made by `ProcessGroup.window`. For one thread at a time.

    `array` is this rank's own part: an ordinary array of the shape and dtype that all ranks gave.
    Places are counts of elements from its beginning, in C order.
    """

    def __init__(self, array: np.ndarray, world_size: int, all_to_all: AllToAll) -> None:
        self.array = array
        self._flat = array.reshape(-1)
        self._all_to_all = all_to_all
        self._writes: list[list[tuple[Part, bytes]]] = [[] for _ in range(world_size)]
        self._reads: list[list[tuple[Part, np.ndarray]]] = [[] for _ in range(world_size)]

    def put(self, peer: int, data: np.ndarray, *, at: int = 0) -> None:
        """Write `data` to rank `peer`'s part at the next fence. `data` may be changed at once."""
        given = arrays.flat(arrays.checked("put", data))
        if given.dtype != self.array.dtype:
            raise UsageError(f"put: the window holds {self.array.dtype}; got {given.dtype}")
        part = self._checked("put", peer, at, given.size)
        self._writes[peer].append((part, given.tobytes()))

    def get(self, peer: int, *, at: int = 0, count: int | None = None) -> np.ndarray:
        """A flat array that the next fence fills with `count` elements of rank `peer`'s part.

        Without `count`, all from `at` on. Until then it has no particular content.
        """
        part = self._checked("get", peer, at, self._flat.size - at if count is None else count)
        out = np.empty(part[1], self.array.dtype)
        self._reads[peer].append((part, out))
        return out

    def fence(self) -> None:
        """Carry out what all ranks have asked for since the last fence; every rank calls it.

        Afterwards every `get` is filled and every `put` is in place. Errors are those of any
        collective.
        """
        requests = [
            _packed(writes, reads) for writes, reads in zip(self._writes, self._reads, strict=True)
        ]
        reads = self._reads
        self._writes = [[] for _ in requests]
        self._reads = [[] for _ in requests]
        came = [
            self._unpacked(peer, data.tobytes())
            for peer, data in enumerate(self._all_to_all(requests))
        ]
        answers = [self._read(wanted) for _, wanted in came]
        for writes, _ in came:
            for (at, count), content in writes:
                self._flat[at : at + count] = np.frombuffer(content, self.array.dtype)
        for slots, answer in zip(reads, self._all_to_all(answers), strict=True):
            start = 0
            for (_, count), out in slots:
                out[:] = answer[start : start + count]
                start += count

    def _read(self, parts: Sequence[Part]) -> np.ndarray:
        read = [self._flat[at : at + count] for at, count in parts]
        return np.concatenate(read) if read else np.empty(0, self.array.dtype)

    def _checked(self, call: str, peer: Any, at: Any, count: Any) -> Part:
        ranks = len(self._writes)
        if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < ranks:
            raise UsageError(f"{call}: there is no rank {peer!r} in a world of {ranks}")
        whole = isinstance(at, int) and isinstance(count, int)
        if not whole or not 0 <= at <= at + count <= self._flat.size:
            raise UsageError(
                f"{call}: {count!r} elements at {at!r} are not inside of a window of "
                f"{self._flat.size}"
            )
        return at, count

    def _unpacked(self, peer: int, data: bytes) -> tuple[list[tuple[Part, bytes]], list[Part]]:
        """What rank `peer` asks for, within this rank's bounds."""
        try:
            writes, reads = _COUNTS.unpack_from(data)
            if (writes + reads) * _PART.size > len(data):
                raise Malformed(f"rank {peer} announces {writes + reads} parts of a window")
            start = _COUNTS.size
            parts = []
            for _ in range(writes + reads):
                parts.append(self._checked("fence", peer, *_PART.unpack_from(data, start)))
                start += _PART.size
        except (struct.error, UsageError) as error:
            raise Malformed(f"rank {peer} asks for no part of this window: {error}") from error
        contents = []
        for part in parts[:writes]:
            size = part[1] * self.array.dtype.itemsize
            contents.append((part, data[start : start + size]))
            start += size
        if start != len(data):
            raise Malformed(f"rank {peer} sent {len(data)} bytes for a window; expected {start}")
        return contents, parts[writes:]


def _packed(
    writes: Sequence[tuple[Part, bytes]], reads: Sequence[tuple[Part, np.ndarray]]
) -> np.ndarray:
    head = [_COUNTS.pack(len(writes), len(reads))]
    head += [_PART.pack(*part) for part, _ in writes]
    head += [_PART.pack(*part) for part, _ in reads]
    return np.frombuffer(b"".join([*head, *(content for _, content in writes)]), np.uint8)
