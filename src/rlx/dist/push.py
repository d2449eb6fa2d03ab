"""The coordinator's files for workers that share no file system with it: `push_data`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx.dist.sources import Resolver, load_params, load_rows
from rlx.dist.spec import DataRef, TrainSpec
from rlx.errors import DataError
from rlx.group import ProcessGroup
from rlx.ir import Graph
from rlx.wire import replaced

COORDINATOR = 0


def pushed_params(spec: TrainSpec, group: ProcessGroup, resolve: Resolver) -> dict[str, np.ndarray]:
    """The first parameters, read by the coordinator."""
    if group.rank == COORDINATOR:
        params = load_params(spec.graph, spec.params, resolve)
        for name, value in params.items():
            group.scatter_v([value] * group.world_size, root=COORDINATOR, name=_call(name))
        return params
    return {
        ref.name: group.scatter_v(root=COORDINATOR, name=_call(ref.name)) for ref in spec.params
    }


def pushed_rows(
    graph: Graph, data: Sequence[DataRef], group: ProcessGroup, resolve: Resolver
) -> dict[str, np.ndarray]:
    """This rank's rows, read by the coordinator from its own references.

    A worker says no more than which rows its shard has; without shards every rank gets all rows,
    since any of them may be its own in some epoch.
    """
    shards = _shards(data, group)
    if group.rank != COORDINATOR:
        return {ref.input: group.scatter_v(root=COORDINATOR, name=_call(ref.input)) for ref in data}
    whole = [replaced(ref, shard_start=None, shard_len=None) for ref in data]
    rows = load_rows(graph, whole, resolve)
    own = {}
    for place, ref in enumerate(data):
        parts = [
            _cut(ref, rows[ref.input], rank, *shards[rank, place]) for rank in range(len(shards))
        ]
        own[ref.input] = group.scatter_v(parts, root=COORDINATOR, name=_call(ref.input))
    return own


def _call(name: str) -> str:
    return f"push {name}"[:64]


def _shards(data: Sequence[DataRef], group: ProcessGroup) -> np.ndarray:
    """[rank, input, (start, length)] of every rank; -1 where there are no shards."""
    own = [
        (-1, -1)
        if ref.shard_start is None or ref.shard_len is None
        else (ref.shard_start, ref.shard_len)
        for ref in data
    ]
    return group.all_gather(np.array(own, np.int64), name="push shards")


def _cut(ref: DataRef, rows: np.ndarray, rank: int, start: int, length: int) -> np.ndarray:
    if start < 0:
        return rows
    if start + length > len(rows):
        raise DataError(
            f"input {ref.input!r}: rank {rank}'s shard is rows {start} to {start + length - 1}, "
            f"but {ref.uri} has {len(rows)} rows"
        )
    return rows[start : start + length]
