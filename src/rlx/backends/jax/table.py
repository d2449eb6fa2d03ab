"""The table of rules, and the state of a graph that is being stated in jax's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from rlx.backends.dtypes import is_half, numpy_dtype
from rlx.ir import DType, Node, Op

Traced: TypeAlias = Any
"""An array of jax, known by dtype and shape while a graph is stated."""


class IndexCheck(NamedTuple):
    """Indices that must be in 0..limit-1, of this shape, for a node."""

    node: Node
    limit: int
    shape: tuple[int, ...]


class Trace:
    """One graph on its way to XLA, for one binding of its names.

    `fed` are the values that come from outside, by node id. Each index check adds to `checks`, and
    to `found` a pair: the place of the first wrong index, counted in row order (-1: all are right),
    and that index.
    """

    def __init__(self, bindings: Mapping[str, int], fed: Mapping[int, Traced]) -> None:
        self.bindings = bindings
        self.fed = fed
        self.checks: list[IndexCheck] = []
        self.found: list[Traced] = []

    def shape(self, node: Node) -> tuple[int, ...]:
        """The node's shape."""
        return node.shape.bind(self.bindings)

    def checked(self, node: Node, indices: Traced, count: int) -> Traced:
        """The indices as I64, brought into 0..count-1; where that changed one, the run fails."""
        wide = indices.astype(jnp.int64)
        if wide.size:
            flat = wide.reshape(-1)
            wrong = (flat < 0) | (flat >= count)
            place = jnp.argmax(wrong)
            self.checks.append(IndexCheck(node, count, wide.shape))
            self.found.append(jnp.stack([jnp.where(wrong[place], place, -1), flat[place]]))
        return jnp.clip(wide, 0, max(count - 1, 0))


Rule: TypeAlias = Callable[[Trace, Node, Sequence[Traced]], Traced]
"""The node's value, of its dtype and shape, from its operands."""

RULES: dict[Op, Rule] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Enter the function below into the table for `ops`."""

    def register(made: Rule) -> Rule:
        for op in ops:
            RULES[op] = made
        return made

    return register


def widened(value: Traced, dtype: DType) -> Traced:
    """A value of `dtype` in F32 where that is F16 or BF16, else itself."""
    return value.astype(jnp.float32) if is_half(dtype) else value


def narrowed(value: Traced, node: Node) -> Traced:
    """What was made of widened operands, rounded once to the node's dtype."""
    return value.astype(numpy_dtype(node.dtype))


def ones_where(condition: Traced, node: Node) -> Traced:
    """1 and 0 of the node's dtype for true and false.

    Not by a conversion: XLA takes a converted truth times x for a choice between x and 0, and so
    loses the NaN of 0 times NaN or infinity.
    """
    one = numpy_dtype(node.dtype).type(1)
    return jnp.where(condition, one, jnp.zeros_like(one))
