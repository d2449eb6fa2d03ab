"""The collectives that move arrays and combine nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from rlx.errors import LimitExceeded, Malformed, UsageError
from rlx.group import arrays
from rlx.group.base import GroupBase
from rlx.group.calls import Call, shown

_HEADER_BYTES = 512
GATHER_LIMIT_BYTES = 1 << 33
"""What one rank may announce to another in a call whose sizes the receiver does not know."""


class Shuffles(GroupBase):
    """The half of `ProcessGroup` that moves arrays as they are. Each call is one or two rounds."""

    def broadcast(
        self,
        array: np.ndarray,
        *,
        root: int = 0,
        out: np.ndarray | None = None,
        name: str | None = None,
    ) -> np.ndarray:
        """Every rank gets the array of `root`. All bring an array of one dtype and shape."""
        mine = arrays.checked("broadcast", array)
        result = self._result("broadcast", mine, out)
        details = [shown(mine), self._root("broadcast", root)]
        with self._calling("broadcast", details, name) as call:
            if self.rank != root:
                self._round(call, {}, {root: arrays.bytes_of(result)})
                return result
            content = arrays.bytes_of(arrays.flat(mine))
            self._round(call, dict.fromkeys(self._others(), content), {})
            np.copyto(result, mine)
            return result

    def all_gather(self, array: np.ndarray, *, name: str | None = None) -> np.ndarray:
        """The arrays of all ranks, stacked along a new axis 0. All have one dtype and shape."""
        mine = arrays.checked("all_gather", array)
        result = np.empty((self.world_size, *mine.shape), mine.dtype)
        slots = {peer: arrays.bytes_of(result[peer : peer + 1]) for peer in self._others()}
        content = arrays.bytes_of(arrays.flat(mine))
        with self._calling("all_gather", [shown(mine)], name) as call:
            self._round(call, dict.fromkeys(self._others(), content), slots)
        result[self.rank] = mine
        return result

    def gather(
        self, array: np.ndarray, *, root: int = 0, name: str | None = None
    ) -> np.ndarray | None:
        """Like `all_gather`, with the result on `root` alone; the others get None."""
        mine = arrays.checked("gather", array)
        with self._calling("gather", [shown(mine), self._root("gather", root)], name) as call:
            if self.rank != root:
                self._round(call, {root: arrays.bytes_of(arrays.flat(mine))}, {})
                return None
            result = np.empty((self.world_size, *mine.shape), mine.dtype)
            slots = {peer: arrays.bytes_of(result[peer : peer + 1]) for peer in self._others()}
            self._round(call, {}, slots)
            result[self.rank] = mine
            return result

    def scatter(
        self, array: np.ndarray | None = None, *, root: int = 0, name: str | None = None
    ) -> np.ndarray:
        """Rank r gets row r of the array of `root`, whose axis 0 is the world size long.

        The others need not know dtype and shape; what they pass is ignored.
        """
        rows: list[np.ndarray] | None = None
        if self.rank == self._peer("scatter", root):
            mine = arrays.checked("scatter", array)
            if mine.ndim < 1 or mine.shape[0] != self.world_size:
                raise UsageError(
                    f"scatter: axis 0 is the world size, {self.world_size}; got {shown(mine)}"
                )
            rows = [mine[rank] for rank in range(self.world_size)]
        return self._scatter("scatter", rows, root, name)

    def scatter_v(
        self,
        parts: Sequence[np.ndarray] | None = None,
        *,
        root: int = 0,
        name: str | None = None,
    ) -> np.ndarray:
        """Rank r gets `parts[r]` of `root`; shapes and dtypes may differ, and the others pass
        None."""
        mine: list[np.ndarray] | None = None
        if self.rank == self._peer("scatter_v", root):
            mine = arrays.checked_all("scatter_v", parts, self.world_size)
        return self._scatter("scatter_v", mine, root, name)

    def _scatter(
        self, call_name: str, parts: list[np.ndarray] | None, root: int, name: str | None
    ) -> np.ndarray:
        with self._calling(call_name, [self._root(call_name, root)], name) as call:
            return self._announced_round(call, parts or [], [root])[root]

    def all_to_all(self, array: np.ndarray, *, name: str | None = None) -> np.ndarray:
        """Rank r gets the r-th part, along axis 0, of every rank's array, in rank order.

        All have one dtype and shape; the length of axis 0 is a multiple of the world size.
        """
        part = self._part("all_to_all", arrays.checked("all_to_all", array))
        mine = np.ascontiguousarray(array)
        result = np.empty_like(mine)
        blocks = {peer: slice(peer * part, (peer + 1) * part) for peer in range(self.world_size)}
        with self._calling("all_to_all", [shown(mine)], name) as call:
            self._round(
                call,
                {peer: arrays.bytes_of(mine[blocks[peer]]) for peer in self._others()},
                {peer: arrays.bytes_of(result[blocks[peer]]) for peer in self._others()},
            )
        result[blocks[self.rank]] = mine[blocks[self.rank]]
        return result

    def all_to_all_v(
        self, parts: Sequence[np.ndarray], *, name: str | None = None
    ) -> list[np.ndarray]:
        """Rank r gets `parts[r]` of every rank, in rank order; shapes and dtypes may differ."""
        mine = arrays.checked_all("all_to_all_v", parts, self.world_size)
        everyone = list(range(self.world_size))
        with self._calling("all_to_all_v", [], name) as call:
            got = self._announced_round(call, mine, everyone)
        return [got[peer] for peer in everyone]

    def permute(
        self, array: np.ndarray, destinations: Sequence[int], *, name: str | None = None
    ) -> np.ndarray:
        """Rank r's array goes to rank `destinations[r]`; each rank gets one array.

        `destinations` is a permutation of the ranks, the same everywhere; so are dtype and shape.
        """
        given = arrays.checked("permute", array)
        mine = np.ascontiguousarray(given).reshape(given.shape)
        ranks = range(self.world_size)
        if not isinstance(destinations, list | tuple) or set(destinations) != set(ranks):
            raise UsageError(
                f"permute: {destinations!r} is no permutation of {self.world_size} ranks"
            )
        to, source = destinations[self.rank], list(destinations).index(self.rank)
        details = [shown(mine), "destinations=" + ",".join(str(one) for one in destinations)]
        result = mine.copy()
        stays = to == self.rank
        contents = {} if stays else {to: arrays.bytes_of(mine)}
        with self._calling("permute", details, name) as call:
            self._round(call, contents, {} if stays else {source: arrays.bytes_of(result)})
        return result

    def all_gather_bytes(self, data: bytes, *, name: str | None = None) -> list[bytes]:
        """The bytes of all ranks, in rank order; lengths may differ."""
        arrays.checked_bytes("all_gather_bytes", data)
        mine = [np.frombuffer(data, np.uint8)] * self.world_size
        everyone = list(range(self.world_size))
        with self._calling("all_gather_bytes", [], name) as call:
            got = self._announced_round(call, mine, everyone)
        return [got[peer].tobytes() for peer in everyone]

    def _announced_round(
        self, call: Call, mine: Sequence[np.ndarray], sources: Sequence[int]
    ) -> dict[int, np.ndarray]:
        """Arrays whose dtype and shape the receiver does not know: a header round, then content.

        A rank among `sources` brings one array for each rank; the others bring none.
        """
        headers = {peer: bytearray(_HEADER_BYTES) for peer in sources if peer != self.rank}
        whole = [np.ascontiguousarray(one).reshape(one.shape) for one in mine]
        self._round(
            call,
            {peer: _header(whole[peer]) for peer in self._others()} if whole else {},
            {peer: memoryview(header) for peer, header in headers.items()},
        )
        result = {peer: _announced(call, peer, header) for peer, header in headers.items()}
        self._round(
            call,
            {peer: arrays.bytes_of(whole[peer]) for peer in self._others()} if whole else {},
            {peer: arrays.bytes_of(array) for peer, array in result.items()},
            number=2,
        )
        if whole:
            result[self.rank] = whole[self.rank].copy()
        return result


def _header(array: np.ndarray) -> bytes:
    text = json.dumps([array.dtype.name, list(array.shape)], separators=(",", ":")).encode()
    if len(text) > _HEADER_BYTES:
        raise UsageError(f"an array of {array.ndim} dimensions has too many to announce")
    return text.ljust(_HEADER_BYTES)


def _announced(call: Call, peer: int, header: bytearray) -> np.ndarray:
    """An empty array as `peer` announced it, within the limit."""
    try:
        name, shape = json.loads(header)
        dtype = arrays.dtype_named(name)
        count = 1
        for size in shape:
            count *= _natural(size)
    except (ValueError, TypeError, KeyError) as error:
        raise Malformed(f"{call.text}: rank {peer} announces no array: {error!r}") from error
    if count * dtype.itemsize > GATHER_LIMIT_BYTES:
        raise LimitExceeded(
            f"{call.text}: rank {peer} announces {count * dtype.itemsize} bytes; "
            f"the limit is {GATHER_LIMIT_BYTES}"
        )
    return np.empty(shape, dtype)


def _natural(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{size!r} is no length of an axis")
    return size
