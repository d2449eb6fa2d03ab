"""Windows that slide along axes: the dimensions of `unfold` and `fold`, and what is legal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.errors import GraphError
from rlx.ir.dims import Dim
from rlx.ir.shape import Shape


def unfolded_dims(shape: Shape, attributes: Mapping[str, Any]) -> list[Dim]:
    """Each windowed axis becomes the number of its windows; their sizes are appended."""
    axes, sizes, steps = (attributes[name] for name in ("axes", "sizes", "steps"))
    _check_axes("unfold", axes, shape.rank, sizes, steps)
    dims = list(shape.dims)
    for axis, size, step in zip(axes, sizes, steps, strict=True):
        dims[axis] = window_count("unfold", shape, axis, shape[axis], size, step)
    return [*dims, *sizes]


def folded_dims(shape: Shape, attributes: Mapping[str, Any]) -> list[Dim]:
    """What an `unfold` had that gave `shape`: the windowed axes have the given lengths again."""
    axes, lengths, steps = (attributes[name] for name in ("axes", "lengths", "steps"))
    rank = shape.rank - len(axes)
    _check_axes("fold", axes, rank, lengths, steps)
    dims = list(shape.dims[:rank])
    for axis, length, step, size in zip(axes, lengths, steps, shape.dims[rank:], strict=True):
        if not isinstance(size, int):
            raise GraphError(f"fold: the size of a window is an int; got {size} in {shape}")
        count = window_count("fold", shape, axis, length, size, step)
        if count != shape[axis]:
            raise GraphError(
                f"fold: an axis of {length} has {count} windows of {size}, {step} apart; "
                f"got {shape[axis]} in {shape}"
            )
        dims[axis] = length
    return dims


def window_count(what: str, shape: Shape, axis: int, length: Dim, size: int, step: int) -> int:
    """How many windows of `size` elements, `step` apart, lie wholly in an axis of `length`."""
    if not isinstance(length, int):
        raise GraphError(
            f"{what}: windows slide over an axis of known length; {shape} has {length}"
        )
    if size < 1 or step < 1:
        raise GraphError(f"{what}: a window has at least 1 element and moves on by at least 1")
    if size > length:
        raise GraphError(f"{what}: a window of {size} is longer than axis {axis}, of {length}")
    return (length - size) // step + 1


def _check_axes(
    what: str,
    axes: tuple[int, ...],
    rank: int,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
) -> None:
    if not len(axes) == len(sizes) == len(steps):
        raise GraphError(
            f"{what}: {len(axes)} axes, {len(sizes)} sizes and {len(steps)} steps; one of each"
        )
    if list(axes) != sorted(set(axes)) or any(axis >= rank for axis in axes):
        raise GraphError(f"{what}: {list(axes)} are no ascending axes of {rank}")
