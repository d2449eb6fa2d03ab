"""Graphs as bytes: op codes, and the plain form of each kind of attribute.

The body is the MessagePack array `[name, [[op code, [input ids], [attributes]], ...], [output
ids]]`. Types and shapes are not shipped: decoding builds the graph anew, node by node, with every
check that a hand-built graph passes, and encodes it again to compare.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlx.errors import GraphError, Malformed
from rlx.ir import CATALOGUE, DType, Graph, Kind, Node, Op
from rlx.wire.envelope import WireKind, seal, unseal
from rlx.wire.scan import scan

GRAPH_VERSION = 1
GRAPH_LIMIT_BYTES = 1 << 30

# A code is never reused or renumbered: old bytes must never mean something else.
OP_CODES: dict[Op, int] = {
    **{Op.INPUT: 1, Op.PARAM: 2, Op.CONSTANT: 3, Op.SIZE: 4},
    **{Op.NEG: 10, Op.EXP: 11, Op.LOG: 12, Op.SQRT: 13, Op.TANH: 14, Op.SIGMOID: 15, Op.RELU: 16},
    **{Op.GELU: 17, Op.ABS: 18, Op.SIN: 19, Op.COS: 20, Op.NOT: 21},
    **{Op.ADD: 40, Op.SUB: 41, Op.MUL: 42, Op.DIV: 43, Op.POW: 44, Op.MAX: 45, Op.MIN: 46},
    **{Op.EQ: 47, Op.NE: 48, Op.LT: 49, Op.LE: 50, Op.GT: 51, Op.GE: 52, Op.AND: 53, Op.OR: 54},
    **{Op.WHERE: 70, Op.CAST: 71, Op.MATMUL: 72},
    **{Op.REDUCE_SUM: 80, Op.REDUCE_MEAN: 81, Op.REDUCE_MAX: 82, Op.REDUCE_MIN: 83},
    **{Op.REDUCE_PROD: 84, Op.ARGMAX: 85},
    **{Op.RESHAPE: 100, Op.TRANSPOSE: 101, Op.BROADCAST: 102, Op.SLICE: 103, Op.UNSLICE: 104},
    **{Op.CONCAT: 105, Op.GATHER: 106, Op.SCATTER_ADD: 107, Op.ONE_HOT: 108},
    **{Op.UNFOLD: 109, Op.FOLD: 110, Op.PICK: 111},
    **{Op.SOFTMAX: 120, Op.LOG_SOFTMAX: 121, Op.CROSS_ENTROPY: 122, Op.NORMALIZE: 123},
    **{Op.KEEP_MASK: 140},
}
_OPS = {code: op for op, code in OP_CODES.items()}

DTYPE_CODES: dict[DType, int] = {
    **{DType.F16: 1, DType.BF16: 2, DType.F32: 3, DType.F64: 4},
    **{DType.I8: 10, DType.U8: 11, DType.I32: 12, DType.I64: 13, DType.BOOL: 20},
}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}

_LISTS = frozenset({Kind.DIMS, Kind.AXES, Kind.BOUNDS})


def encode_graph(graph: Graph) -> bytes:
    """The canonical bytes of `graph`."""
    nodes = [_plain_node(node) for node in graph.nodes]
    body = msgspec.msgpack.encode([graph.name, nodes, graph.outputs])
    return seal(WireKind.GRAPH, GRAPH_VERSION, body)


def decode_graph(data: bytes, *, limit_bytes: int = GRAPH_LIMIT_BYTES) -> Graph:
    """The graph that `data` encodes, built and checked anew; anything else is a `WireError`."""
    body = unseal(data, WireKind.GRAPH, (GRAPH_VERSION,), limit_bytes)
    scan(body)
    try:
        plain = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"these bytes are no graph: {error}") from error
    name, nodes, outputs = _fields(plain, (str, list, list), "a graph")
    try:
        graph = _built(name, nodes, outputs)
    except GraphError as error:
        raise Malformed(f"these bytes are no valid graph: {error}") from error
    if encode_graph(graph) != data:
        raise Malformed("these bytes are not the canonical encoding of a graph")
    return graph


def _built(name: str, nodes: list[Any], outputs: list[Any]) -> Graph:
    graph = Graph(name)
    for plain in nodes:
        code, inputs, values = _fields(plain, (int, list, list), f"node {len(graph.nodes)}")
        if code not in _OPS:
            raise Malformed(f"node {len(graph.nodes)}: there is no op with code {code}")
        op = _OPS[code]
        wanted = CATALOGUE[op].attributes
        if len(values) != len(wanted):
            raise Malformed(f"{op.value} has {len(wanted)} attributes; got {len(values)}")
        attributes = {
            key: _rich(kind, value) for (key, kind), value in zip(wanted, values, strict=True)
        }
        graph.add(op, _ids(inputs), attributes)
    if outputs:
        graph.set_outputs([graph.value(one) for one in _ids(outputs)])
    return graph


def _plain_node(node: Node) -> tuple[int, tuple[int, ...], list[object]]:
    values = [_plain(kind, node.attributes[key]) for key, kind in CATALOGUE[node.op].attributes]
    return OP_CODES[node.op], node.inputs, values


def _plain(kind: Kind, value: Any) -> object:
    return DTYPE_CODES[value] if kind is Kind.DTYPE else value


def _rich(kind: Kind, value: object) -> object:
    """The attribute that a plain value stands for; the graph itself checks what it may be."""
    if kind is Kind.DTYPE:
        code: int = _typed(value, int, "the code of a dtype")
        if code not in _DTYPES:
            raise Malformed(f"there is no dtype with code {code}")
        return _DTYPES[code]
    if kind in _LISTS:
        return tuple(_typed(value, list, kind.value))
    return value


def _fields(plain: object, types: tuple[type, ...], what: str) -> list[Any]:
    fields: list[Any] = _typed(plain, list, what)
    if len(fields) != len(types):
        raise Malformed(f"{what} has {len(types)} fields; got {len(fields)}")
    return [_typed(field, kind, what) for field, kind in zip(fields, types, strict=True)]


def _ids(values: list[Any]) -> list[int]:
    return [_typed(value, int, "the id of a node") for value in values]


def _typed(value: object, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Malformed(f"{what}: expected {kind.__name__}; got {type(value).__name__}")
    return value
