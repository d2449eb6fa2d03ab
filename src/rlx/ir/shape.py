"""Shapes: tuples of dimensions, and numpy's broadcasting of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from rlx.errors import GraphError
from rlx.ir.dims import MAX_SIZE, Dim, canonical_dim, evaluate, product

MAX_RANK = 16
"""More axes than this is taken for a mistake, and refused before anything is planned for it."""


class Shape:
    """The dimensions of a value, outermost first. Immutable, compared by value."""

    __slots__ = ("dims",)

    dims: tuple[Dim, ...]

    def __init__(self, dims: Iterable[object]) -> None:
        if isinstance(dims, str | bytes):
            raise GraphError(f"a shape is a list of dimensions; got the text {dims!r}")
        made = tuple(canonical_dim(dim) for dim in dims)
        if len(made) > MAX_RANK:
            raise GraphError(f"a shape has at most {MAX_RANK} dimensions; got {len(made)}")
        known = math.prod(dim for dim in made if isinstance(dim, int))
        if known > MAX_SIZE:
            raise GraphError(f"a shape of {known} elements is too large: {list(made)}")
        object.__setattr__(self, "dims", made)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Shape is immutable")

    @property
    def rank(self) -> int:
        """How many axes there are."""
        return len(self.dims)

    @property
    def size(self) -> Dim:
        """How many elements there are, as a dimension."""
        return product(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is an int."""
        return all(isinstance(dim, int) for dim in self.dims)

    def bind(self, bindings: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in ints, with each name replaced by its value."""
        return tuple(evaluate(dim, bindings) for dim in self.dims)

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dim]:
        return iter(self.dims)

    def __getitem__(self, axis: int) -> Dim:
        return self.dims[axis]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.dims == other.dims

    def __hash__(self) -> int:
        return hash(self.dims)

    def __str__(self) -> str:
        return "[" + ", ".join(str(dim) for dim in self.dims) + "]"

    def __repr__(self) -> str:
        return f"Shape({list(self.dims)!r})"


def broadcast_shapes(shapes: Iterable[Shape], what: str) -> Shape:
    """The shape that numpy's broadcasting gives; `what` names the operation in the error."""
    known = list(shapes)
    rank = max(shape.rank for shape in known)
    dims: list[Dim] = [1] * rank
    for shape in known:
        for axis, dim in enumerate(shape.dims, rank - shape.rank):
            if dims[axis] == 1:
                dims[axis] = dim
            elif dim not in (1, dims[axis]):
                every = " and ".join(str(one) for one in known)
                raise GraphError(
                    f"{what}: shapes {every} do not broadcast: {dims[axis]} against {dim} "
                    f"on axis {axis - rank}"
                )
    return Shape(dims)


def broadcasts_to(source: Shape, target: Shape) -> bool:
    """Whether `source` broadcasts to exactly `target`."""
    if source.rank > target.rank:
        return False
    tail = target.dims[target.rank - source.rank :]
    return all(one in (1, other) for one, other in zip(source.dims, tail, strict=True))
