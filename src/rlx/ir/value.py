"""Values: handles of nodes, with Python's operators on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlx.errors import GraphError
from rlx.ir.dtype import DType
from rlx.ir.ops import BinaryOp, ReduceOp, UnaryOp
from rlx.ir.shape import Shape

if TYPE_CHECKING:
    from rlx.ir.graph import Graph, Node

Operand: TypeAlias = "Value | int | float | bool"


class Value:
    """A handle of one node of a graph. Operators build new nodes; a number becomes a constant.

    `==` compares handles, as Python's containers need; `value.equal(other)` builds the EQ node.
    """

    __slots__ = ("graph", "id")

    # Python would iterate by `value[0]`, `value[1]`, ..., each a new node, and numpy would make an
    # array of values.
    __iter__ = None
    __contains__ = None
    __array_ufunc__ = None

    def __init__(self, graph: Graph, node_id: int) -> None:
        self.graph = graph
        self.id = node_id

    @property
    def node(self) -> Node:
        """The node behind the handle."""
        return self.graph.nodes[self.id]

    @property
    def shape(self) -> Shape:
        """The inferred shape; its `.dims` are ints and names."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.node.dtype

    def __repr__(self) -> str:
        return f"<Value {self.node}>"

    def __bool__(self) -> bool:
        raise GraphError(
            "a graph value has no truth value while the graph is built; "
            "use graph.where(condition, a, b)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.graph is other.graph and self.id == other.id

    def __hash__(self) -> int:
        return hash((id(self.graph), self.id))

    def __add__(self, other: Operand) -> Value:
        return self._with(BinaryOp.ADD, other)

    def __radd__(self, other: Operand) -> Value:
        return self._with(BinaryOp.ADD, other, swapped=True)

    def __sub__(self, other: Operand) -> Value:
        return self._with(BinaryOp.SUB, other)

    def __rsub__(self, other: Operand) -> Value:
        return self._with(BinaryOp.SUB, other, swapped=True)

    def __mul__(self, other: Operand) -> Value:
        return self._with(BinaryOp.MUL, other)

    def __rmul__(self, other: Operand) -> Value:
        return self._with(BinaryOp.MUL, other, swapped=True)

    def __truediv__(self, other: Operand) -> Value:
        return self._with(BinaryOp.DIV, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._with(BinaryOp.DIV, other, swapped=True)

    def __pow__(self, other: Operand) -> Value:
        return self._with(BinaryOp.POW, other)

    def __rpow__(self, other: Operand) -> Value:
        return self._with(BinaryOp.POW, other, swapped=True)

    def __lt__(self, other: Operand) -> Value:
        return self._with(BinaryOp.LT, other)

    def __le__(self, other: Operand) -> Value:
        return self._with(BinaryOp.LE, other)

    def __gt__(self, other: Operand) -> Value:
        return self._with(BinaryOp.GT, other)

    def __ge__(self, other: Operand) -> Value:
        return self._with(BinaryOp.GE, other)

    def __and__(self, other: Operand) -> Value:
        return self._with(BinaryOp.AND, other)

    def __or__(self, other: Operand) -> Value:
        return self._with(BinaryOp.OR, other)

    def equal(self, other: Operand) -> Value:
        """Elementwise equality, BOOL."""
        return self._with(BinaryOp.EQ, other)

    def __matmul__(self, other: Value) -> Value:
        return self.graph.matmul(self, other)

    def __neg__(self) -> Value:
        return self.graph.unary(UnaryOp.NEG, self)

    def __abs__(self) -> Value:
        return self.graph.unary(UnaryOp.ABS, self)

    def __invert__(self) -> Value:
        return self.graph.unary(UnaryOp.NOT, self)

    def __getitem__(self, index: object) -> Value:
        """Slices, `...`, and ints, which drop their axis; for rows by number see `Graph.gather`."""
        return self.graph.index(self, index if isinstance(index, tuple) else (index,))

    def sum(self, axes: Sequence[int] | int | None = None, keepdims: bool = False) -> Value:
        """The sum over `axes`, or over all."""
        return self.graph.reduce(ReduceOp.SUM, self, axes, keepdims)

    def mean(self, axes: Sequence[int] | int | None = None, keepdims: bool = False) -> Value:
        """The mean over `axes`, or over all."""
        return self.graph.reduce(ReduceOp.MEAN, self, axes, keepdims)

    def max(self, axes: Sequence[int] | int | None = None, keepdims: bool = False) -> Value:
        """The maximum over `axes`, or over all."""
        return self.graph.reduce(ReduceOp.MAX, self, axes, keepdims)

    def min(self, axes: Sequence[int] | int | None = None, keepdims: bool = False) -> Value:
        """The minimum over `axes`, or over all."""
        return self.graph.reduce(ReduceOp.MIN, self, axes, keepdims)

    def reshape(self, *dims: int | str) -> Value:
        """The same elements in another shape; one dimension may be -1."""
        return self.graph.reshape(self, dims)

    def transpose(self, *axes: int) -> Value:
        """The axes in another order; without any, reversed."""
        return self.graph.transpose(self, axes or None)

    def cast(self, dtype: DType) -> Value:
        """The same values in another dtype."""
        return self.graph.cast(self, dtype)

    def _with(self, op: BinaryOp, other: Operand, swapped: bool = False) -> Value:
        if not isinstance(other, Value):
            plain = isinstance(other, bool | int | float)
            other = self.graph.scalar(other, self.dtype) if plain else self.graph.constant(other)
        return self.graph.binary(op, other, self) if swapped else self.graph.binary(op, self, other)
