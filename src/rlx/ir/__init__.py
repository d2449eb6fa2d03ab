"""The graph as data: dtypes, shapes, ops, nodes and shape inference.

This room describes computations and runs none; it knows no numpy, no gradients and no bytes of the
wire. Other rooms import only the names below.
"""

from rlx.ir import formulas
from rlx.ir.dims import Dim, evaluate, is_name
from rlx.ir.dtype import DType
from rlx.ir.graph import MAX_NODES, Graph, Node
from rlx.ir.inference import ValueType, accumulation_dtype, wide_dtype
from rlx.ir.layers import DROPOUT_KEY
from rlx.ir.ops import CATALOGUE, BinaryOp, Kind, Op, ReduceOp, UnaryOp
from rlx.ir.shape import Shape
from rlx.ir.value import Value

__all__ = [
    "CATALOGUE",
    "DROPOUT_KEY",
    "MAX_NODES",
    "BinaryOp",
    "DType",
    "Dim",
    "Graph",
    "Kind",
    "Node",
    "Op",
    "ReduceOp",
    "Shape",
    "UnaryOp",
    "Value",
    "ValueType",
    "accumulation_dtype",
    "evaluate",
    "formulas",
    "is_name",
    "wide_dtype",
]
