"""The graph: an append-only list of nodes, built by methods that check as they build."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.errors import GraphError
from rlx.ir.dims import Dim, is_name, names_of
from rlx.ir.dtype import DType
from rlx.ir.inference import ValueType, infer
from rlx.ir.layers import DROPOUT_KEY, LayerBuilder
from rlx.ir.ops import CATALOGUE, Kind, Op
from rlx.ir.shape import Shape
from rlx.ir.value import Value

MAX_NODES = 100_000
MAX_NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Node:
    """One computation: an op, the ids of its inputs, its attributes, and the type it gives."""

    id: int
    op: Op
    inputs: tuple[int, ...]
    attributes: Mapping[str, Any]
    dtype: DType
    shape: Shape

    @property
    def type(self) -> ValueType:
        """The dtype and shape together."""
        return ValueType(self.dtype, self.shape)

    @property
    def name(self) -> str:
        """The name of an input or parameter."""
        name: str = self.attributes["name"]
        return name

    def __str__(self) -> str:
        operands = [f"%{operand}" for operand in self.inputs]
        details = [f"{key}={_shown(value)}" for key, value in self.attributes.items()]
        return f"%{self.id} = {self.op.value}({', '.join(operands + details)}) : {self.type}"


class Graph(LayerBuilder):
    """A computation as data: inputs, parameters and ops, in the order in which they were built.

    Each method that adds a node checks it at once and raises `GraphError` there, so a wrong graph
    fails at the line that made it. A node's id is its place in `nodes`; its inputs come before it.
    """

    def __init__(self, name: str) -> None:
        self._name = _checked_name("graph", name)
        self._nodes: list[Node] = []
        self._outputs: tuple[int, ...] = ()
        self._declared: dict[str, int] = {}

    @property
    def name(self) -> str:
        """What the author calls the graph."""
        return self._name

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, in building order; do not change."""
        return self._nodes

    @property
    def inputs(self) -> list[Node]:
        """The input nodes, in building order."""
        return [node for node in self._nodes if node.op is Op.INPUT]

    @property
    def params(self) -> list[Node]:
        """The parameter nodes, in building order."""
        return [node for node in self._nodes if node.op is Op.PARAM]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The ids of the outputs, in order."""
        return self._outputs

    def value(self, node_id: int) -> Value:
        """The handle of a node, to build on."""
        if not 0 <= node_id < len(self._nodes):
            raise GraphError(f"graph {self.name!r} has no node {node_id}")
        return Value(self, node_id)

    def __getitem__(self, name: str) -> Value:
        """The input or parameter that is called `name`."""
        if name not in self._declared:
            known = ", ".join(self._declared) or "none"
            raise GraphError(
                f"graph {self.name!r} has no input or parameter {name!r}; it has {known}"
            )
        return Value(self, self._declared[name])

    def add(self, op: Op, inputs: Sequence[int], attributes: Mapping[str, Any]) -> Value:
        """Append a node with attributes in canonical form. The one way in, also off the wire."""
        if len(self._nodes) >= MAX_NODES:
            raise GraphError(f"a graph has at most {MAX_NODES} nodes")
        ids = tuple(inputs)
        if any(not 0 <= one < len(self._nodes) for one in ids):
            raise GraphError(f"{op.value}: inputs {list(ids)} are not all nodes of this graph")
        checked = self._check_attributes(op, attributes)
        types = tuple(self._nodes[one].type for one in ids)
        dtype, shape = infer(op, types, checked)
        self._nodes.append(Node(len(self._nodes), op, ids, checked, dtype, shape))
        if op in (Op.INPUT, Op.PARAM):
            self._declared[checked["name"]] = len(self._nodes) - 1
        return Value(self, len(self._nodes) - 1)

    def set_outputs(self, values: Iterable[Value]) -> None:
        """Say what the graph computes. Every named dimension must be bound by some input."""
        ids = tuple(self._id(value) for value in values)
        if not ids:
            raise GraphError(f"graph {self.name!r}: there are no outputs to set")
        bindable = {dim for node in self.inputs for dim in node.shape if is_name(dim)}
        used = names_of(self.named_dims())
        if used - bindable:
            raise GraphError(
                f"graph {self.name!r}: no input has the dimension(s) "
                f"{', '.join(sorted(used - bindable))}, so nothing can bind them"
            )
        self._outputs = ids

    def needed(self) -> frozenset[int]:
        """The ids of the nodes that some output depends on."""
        found = set(self._outputs)
        for node in reversed(self._nodes):
            if node.id in found:
                found.update(node.inputs)
        return frozenset(found)

    def named_dims(self) -> Iterator[Dim]:
        """Every dimension that occurs anywhere in the graph, sizes included."""
        for node in self._nodes:
            yield from node.shape
            if node.op is Op.SIZE:
                yield node.attributes["dim"]

    def copy(self, name: str | None = None) -> Graph:
        """The same nodes and outputs in a new graph; ids stay the same."""
        twin = Graph(self.name if name is None else name)
        twin._nodes = list(self._nodes)
        twin._outputs = self._outputs
        twin._declared = dict(self._declared)
        return twin

    def describe(self) -> str:
        """The graph as text, one node a line: canonical, complete, and made for reading."""
        lines = [f"graph {self.name!r}", *(str(node) for node in self._nodes)]
        return "\n".join([*lines, f"outputs {', '.join(f'%{one}' for one in self._outputs)}", ""])

    def digest(self) -> str:
        """SHA-256 (hex) of `describe()`: equal exactly for graphs with the same encoding."""
        return hashlib.sha256(self.describe().encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self._nodes)} nodes, {len(self._outputs)} outputs>"

    def _id(self, value: object) -> int:
        if not isinstance(value, Value):
            raise GraphError(f"expected a value of graph {self.name!r}; got {value!r}")
        if value.graph is not self:
            raise GraphError(
                f"a value of graph {value.graph.name!r} was given to graph {self.name!r}"
            )
        return value.id

    def _dropout_key(self) -> Value:
        if DROPOUT_KEY in self._declared:
            return self[DROPOUT_KEY]
        return self.input(DROPOUT_KEY, [3], DType.I64)

    def _streams(self) -> int:
        return sum(node.op is Op.KEEP_MASK for node in self._nodes)

    def _check_attributes(self, op: Op, attributes: Mapping[str, Any]) -> dict[str, Any]:
        wanted = CATALOGUE[op].attributes
        if set(attributes) != {key for key, _ in wanted}:
            raise GraphError(
                f"{op.value} has the attributes {[key for key, _ in wanted]}; "
                f"got {list(attributes)}"
            )
        for key, kind in wanted:
            if not _CHECKS[kind](attributes[key]):
                raise GraphError(
                    f"{op.value}: {key} is {kind.value}; got {_shown(attributes[key])}"
                )
        if op in (Op.INPUT, Op.PARAM):
            self._check_declaration(
                op, attributes["name"], Shape(attributes["dims"]), attributes["dtype"]
            )
        return {key: attributes[key] for key, _ in wanted}

    def _check_declaration(self, op: Op, name: str, shape: Shape, dtype: DType) -> None:
        if name in self._declared:
            raise GraphError(f"graph {self.name!r} has {name!r} already")
        if name == DROPOUT_KEY and (op, dtype, shape) != (Op.INPUT, DType.I64, Shape([3])):
            raise GraphError(f"{name!r} is kept for dropout: an input I64[3]; call it otherwise")
        if op is Op.PARAM and not shape.is_static:
            raise GraphError(f"parameter {name!r}: its shape is known; got {shape}")


def _checked_name(what: str, name: object) -> str:
    if not _is_name(name):
        raise GraphError(f"the name of a {what} is {Kind.NAME.value}; got {name!r}")
    assert isinstance(name, str)
    return name


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARACTERS and value.isprintable()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_canonical_dim(value: object) -> bool:
    return not isinstance(value, bool) and Shape([value]).dims[0] == value


def _all(check: Any, value: object) -> bool:
    return isinstance(value, tuple) and all(check(one) for one in value)


_CHECKS: dict[Kind, Any] = {
    Kind.NAME: _is_name,
    Kind.DTYPE: lambda value: isinstance(value, DType),
    Kind.DIM: _is_canonical_dim,
    Kind.DIMS: lambda value: _all(_is_canonical_dim, value),
    Kind.AXIS: _is_natural,
    Kind.COUNT: lambda value: _is_natural(value) and value < 2**32,
    Kind.AXES: lambda value: _all(_is_natural, value),
    Kind.FLAG: lambda value: isinstance(value, bool),
    Kind.BOUNDS: lambda value: _all(lambda one: one is None or _is_int(one), value),
    Kind.BYTES: lambda value: isinstance(value, bytes),
}


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        if len(value) <= 16:
            return "0x" + value.hex()
        return f"{len(value)} bytes of sha256 {hashlib.sha256(value).hexdigest()}"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return "[" + ", ".join(str(one) for one in value) + "]"
    return repr(value)
