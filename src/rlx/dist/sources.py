"""Rows and first parameters, as arrays of the graph's dtype and shape, from what a resolver
gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlx.backends import numpy_dtype
from rlx.dist.initial import SCHEME, initial_value
from rlx.dist.spec import DataRef, TrainSpec, WeightRef
from rlx.errors import DataError
from rlx.ir import Graph, Node

Resolver: TypeAlias = Callable[[str], "np.ndarray | memoryview | bytes"]
"""A URI to its content: an array where the file says dtype and shape, raw little-endian bytes
otherwise."""


def load_rows(graph: Graph, data: Sequence[DataRef], resolve: Resolver) -> dict[str, np.ndarray]:
    """The rows of each input, `[rows, ...]`, cut to this rank's shard where there is one.

    Every input has the same number of rows; if not, or if a file does not hold what its reference
    says, `DataError` names both numbers.
    """
    loaded = {ref.input: _rows(graph[ref.input].node, ref, resolve) for ref in data}
    counts = {name: len(rows) for name, rows in loaded.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(f"the inputs have different numbers of rows: {shown}")
    return loaded


def count_rows(spec: TrainSpec, resolve: Resolver) -> int:
    """The rows of an epoch on one rank, by the files of `spec`; errors as of `load_rows`."""
    return len(next(iter(load_rows(spec.graph, spec.data, resolve).values())))


def load_params(
    graph: Graph, params: Sequence[WeightRef], resolve: Resolver
) -> dict[str, np.ndarray]:
    """The first value of each parameter, in the order of `params`."""
    offset = 0
    loaded = {}
    for ref in params:
        node = graph[ref.name].node
        loaded[ref.name] = _param(node, ref, resolve, offset)
        if ref.packed:
            offset += loaded[ref.name].nbytes
    return loaded


def _rows(node: Node, ref: DataRef, resolve: Resolver) -> np.ndarray:
    dtype = numpy_dtype(node.dtype)
    content = _content(f"input {ref.input!r}", ref.uri, resolve)
    if isinstance(content, np.ndarray):
        table = _typed_rows(content, dtype, ref)
    else:
        table = _raw_rows(content, dtype, ref)
    shape = tuple(dim for dim in node.shape.dims[1:] if isinstance(dim, int))
    return _shard(table.reshape(len(table), *shape), ref)


def _content(what: str, uri: str, resolve: Resolver) -> np.ndarray | memoryview:
    """What the resolver gives: an array, or raw bytes. Its errors know the file; `what` it is for
    is known here."""
    try:
        found = resolve(uri)
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    if isinstance(found, np.ndarray) and not isinstance(found, np.ma.MaskedArray):
        return found
    if isinstance(found, bytes | bytearray | memoryview):
        raw = memoryview(found)
        return raw.cast("B") if raw.nbytes else memoryview(b"")
    raise DataError(
        f"{what}: the resolver gives a {type(found).__name__} for {uri}; expected an array or bytes"
    )


def _typed_rows(content: np.ndarray, dtype: np.dtype[Any], ref: DataRef) -> np.ndarray:
    elements = math.prod(content.shape[1:])
    if content.dtype != dtype or content.ndim < 1 or elements != ref.elem:
        raise DataError(
            f"input {ref.input!r}: {ref.uri} holds {content.dtype}{list(content.shape)}; "
            f"expected {dtype} rows of {ref.elem} elements"
        )
    return content.reshape(len(content), ref.elem)


def _raw_rows(content: memoryview, dtype: np.dtype[Any], ref: DataRef) -> np.ndarray:
    row_bytes = ref.elem * dtype.itemsize
    if content.nbytes % row_bytes:
        raise DataError(
            f"input {ref.input!r}: {ref.uri} has {content.nbytes} bytes, which is no whole number "
            f"of rows of {ref.elem} {dtype} ({row_bytes} bytes)"
        )
    return _little_endian(content, dtype).reshape(-1, ref.elem)


def _shard(table: np.ndarray, ref: DataRef) -> np.ndarray:
    if ref.shard_start is None or ref.shard_len is None:
        return table
    stop = ref.shard_start + ref.shard_len
    if stop > len(table):
        raise DataError(
            f"input {ref.input!r}: the shard is rows {ref.shard_start} to {stop - 1}, but "
            f"{ref.uri} has {len(table)} rows"
        )
    return table[ref.shard_start : stop]


def _param(node: Node, ref: WeightRef, resolve: Resolver, offset: int) -> np.ndarray:
    dtype = numpy_dtype(node.dtype)
    shape = tuple(dim for dim in node.shape if isinstance(dim, int))
    if ref.uri.startswith(SCHEME):
        return initial_value(ref.uri, ref.name, shape, dtype)
    content = _content(f"parameter {ref.name!r}", ref.uri, resolve)
    if isinstance(content, np.ndarray):
        if content.dtype != dtype or content.shape != shape:
            raise DataError(
                f"parameter {ref.name!r}: {ref.uri} holds {content.dtype}{list(content.shape)}; "
                f"expected {dtype}{list(shape)}"
            )
        return content
    raw = content
    needed = math.prod(shape) * dtype.itemsize
    has = raw.nbytes - offset if ref.packed else raw.nbytes
    if has < needed or (not ref.packed and has != needed):
        raise DataError(
            f"parameter {ref.name!r}: {ref.uri} has {has} bytes; {dtype}{list(shape)} needs "
            f"{needed}"
        )
    start = offset if ref.packed else 0
    return _little_endian(raw[start : start + needed], dtype).reshape(shape)


def _little_endian(content: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    """Raw little-endian bytes as a native array; no copy where the two are the same."""
    if not content.nbytes:
        return np.empty(0, dtype)
    raw = np.frombuffer(content, dtype.newbyteorder("<"))
    if raw.dtype == np.bool_ and raw.view(np.uint8).max() > 1:
        raise DataError("a bool is a byte of 0 or 1; the file has others")
    return raw.astype(dtype, copy=False)
