"""Slice bounds: what a user writes, the canonical form, and the dimensions that come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.errors import GraphError
from rlx.ir.dims import Dim, add, subtract
from rlx.ir.shape import Shape


def canonical_bounds(
    shape: Shape,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int | None] | None,
) -> dict[str, tuple[int | None, ...]]:
    """Bounds in canonical form: over a known dimension they are what `slice.indices` makes of them.

    Over a named one they stay as written: None, or an int that counts from the end if negative.
    """
    steps = [1] * shape.rank if steps is None else steps
    for name, bounds in (("starts", starts), ("stops", stops), ("steps", steps)):
        if len(bounds) != shape.rank:
            raise GraphError(f"slice: {len(bounds)} {name} for the {shape.rank} axes of {shape}")
    columns = [
        _canonical(dim, start, stop, 1 if step is None else step)
        for dim, start, stop, step in zip(shape, starts, stops, steps, strict=True)
    ]
    names = ("starts", "stops", "steps")
    return {name: tuple(column[i] for column in columns) for i, name in enumerate(names)}


def sliced_dims(shape: Shape, attributes: Mapping[str, Any]) -> list[Dim]:
    """The dimensions of a slice with canonical bounds; any other bounds are a `GraphError`."""
    again = canonical_bounds(shape, attributes["starts"], attributes["stops"], attributes["steps"])
    if any(again[name] != attributes[name] for name in again):
        raise GraphError(f"slice of {shape}: the bounds are not in canonical form")
    return [
        _length(dim, start, stop, step)
        for dim, start, stop, step in zip(
            shape, again["starts"], again["stops"], again["steps"], strict=True
        )
    ]


def _canonical(
    dim: Dim, start: int | None, stop: int | None, step: int
) -> tuple[int | None, int | None, int]:
    for bound in (start, stop, step):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise GraphError(f"slice: a bound is an int or None; got {bound!r}")
    if step == 0:
        raise GraphError("slice: a step is not 0")
    if isinstance(dim, int):
        first, last, stride = slice(start, stop, step).indices(dim)
        if not range(first, last, stride):
            return 0, 0, stride  # nothing has one form: a bound of -1 would count from the end
        return first, None if last < 0 else last, stride
    if step == 1 or (step == -1 and start is None and stop is None):
        return start, stop, step
    raise GraphError(
        f"slice: over the named dimension {dim} only step 1, or -1 over all of it; got "
        f"{start}:{stop}:{step}"
    )


def _length(dim: Dim, start: int | None, stop: int | None, step: int | None) -> Dim:
    if isinstance(dim, int):
        return len(range(*slice(start, stop, step).indices(dim)))
    if step == -1:
        return dim
    first = _position(dim, 0 if start is None else start)
    last = dim if stop is None else _position(dim, stop)
    return subtract(last, first)


def _position(dim: Dim, bound: int) -> Dim:
    return bound if bound >= 0 else add(dim, bound)
