"""The op catalogue: every op, how many inputs it takes, and what attributes it carries.

What an op means lives in other tables, each keyed by `Op`: shape inference (`ir.inference`), VJP
(`autodiff.rules`), numpy kernel and oracle (`backends`), wire code (`wire.graphs`). Adding an op is
adding a row here and in each of them; a test walks this catalogue and fails where one is missing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Op(enum.Enum):
    """What a node does."""

    INPUT = "input"
    PARAM = "param"
    CONSTANT = "constant"
    SIZE = "size"

    NEG = "neg"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    RELU = "relu"
    GELU = "gelu"
    ABS = "abs"
    SIN = "sin"
    COS = "cos"
    NOT = "not"

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    POW = "pow"
    MAX = "max"
    MIN = "min"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    AND = "and"
    OR = "or"

    WHERE = "where"
    CAST = "cast"
    MATMUL = "matmul"

    REDUCE_SUM = "reduce_sum"
    REDUCE_MEAN = "reduce_mean"
    REDUCE_MAX = "reduce_max"
    REDUCE_MIN = "reduce_min"
    REDUCE_PROD = "reduce_prod"
    ARGMAX = "argmax"

    RESHAPE = "reshape"
    TRANSPOSE = "transpose"
    BROADCAST = "broadcast"
    SLICE = "slice"
    UNSLICE = "unslice"
    UNFOLD = "unfold"
    FOLD = "fold"
    CONCAT = "concat"
    GATHER = "gather"
    SCATTER_ADD = "scatter_add"
    ONE_HOT = "one_hot"
    PICK = "pick"

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    CROSS_ENTROPY = "cross_entropy"
    NORMALIZE = "normalize"

    KEEP_MASK = "keep_mask"


class UnaryOp(enum.Enum):
    """The elementwise ops of one input; the value is the node's `Op`."""

    NEG = Op.NEG
    EXP = Op.EXP
    LOG = Op.LOG
    SQRT = Op.SQRT
    TANH = Op.TANH
    SIGMOID = Op.SIGMOID
    RELU = Op.RELU
    GELU = Op.GELU
    ABS = Op.ABS
    SIN = Op.SIN
    COS = Op.COS
    NOT = Op.NOT


class BinaryOp(enum.Enum):
    """The elementwise ops of two inputs; the value is the node's `Op`."""

    ADD = Op.ADD
    SUB = Op.SUB
    MUL = Op.MUL
    DIV = Op.DIV
    POW = Op.POW
    MAX = Op.MAX
    MIN = Op.MIN
    EQ = Op.EQ
    NE = Op.NE
    LT = Op.LT
    LE = Op.LE
    GT = Op.GT
    GE = Op.GE
    AND = Op.AND
    OR = Op.OR


class ReduceOp(enum.Enum):
    """The reductions, of a graph and of a group; the value is the node's `Op`."""

    SUM = Op.REDUCE_SUM
    MEAN = Op.REDUCE_MEAN
    MAX = Op.REDUCE_MAX
    MIN = Op.REDUCE_MIN
    PROD = Op.REDUCE_PROD


class Kind(enum.Enum):
    """What an attribute holds, in its canonical form."""

    NAME = "text of 1 to 256 printable characters"
    DTYPE = "a DType"
    DIM = "a dimension"
    DIMS = "a tuple of dimensions"
    AXIS = "an int >= 0"
    COUNT = "an int from 0 to 2**32 - 1"
    AXES = "a tuple of ints >= 0"
    FLAG = "a bool"
    BOUNDS = "a tuple of ints or None"
    BYTES = "little-endian element bytes"


@dataclass(frozen=True, slots=True)
class Signature:
    """How a node of an op is made: the number of inputs (None: one or more) and its attributes."""

    inputs: int | None
    attributes: tuple[tuple[str, Kind], ...] = ()


_AXES = (("axes", Kind.AXES), ("keepdims", Kind.FLAG))
_AXIS = (("axis", Kind.AXIS),)
_DECLARATION = (("name", Kind.NAME), ("dims", Kind.DIMS), ("dtype", Kind.DTYPE))
_BOUNDS = (("starts", Kind.BOUNDS), ("stops", Kind.BOUNDS), ("steps", Kind.BOUNDS))

CATALOGUE: dict[Op, Signature] = {
    Op.INPUT: Signature(0, _DECLARATION),
    Op.PARAM: Signature(0, _DECLARATION),
    Op.CONSTANT: Signature(
        0, (("content", Kind.BYTES), ("dims", Kind.DIMS), ("dtype", Kind.DTYPE))
    ),
    Op.SIZE: Signature(0, (("dim", Kind.DIM), ("dtype", Kind.DTYPE))),
    **{op.value: Signature(1) for op in UnaryOp},
    **{op.value: Signature(2) for op in BinaryOp},
    Op.WHERE: Signature(3),
    Op.CAST: Signature(1, (("dtype", Kind.DTYPE),)),
    Op.MATMUL: Signature(2),
    **{op.value: Signature(1, _AXES) for op in ReduceOp},
    Op.ARGMAX: Signature(1, _AXIS),
    Op.RESHAPE: Signature(1, (("dims", Kind.DIMS),)),
    Op.TRANSPOSE: Signature(1, (("axes", Kind.AXES),)),
    Op.BROADCAST: Signature(1, (("dims", Kind.DIMS),)),
    Op.SLICE: Signature(1, _BOUNDS),
    Op.UNSLICE: Signature(1, (("dims", Kind.DIMS), *_BOUNDS)),
    Op.UNFOLD: Signature(1, (("axes", Kind.AXES), ("sizes", Kind.AXES), ("steps", Kind.AXES))),
    Op.FOLD: Signature(1, (("axes", Kind.AXES), ("lengths", Kind.AXES), ("steps", Kind.AXES))),
    Op.CONCAT: Signature(None, _AXIS),
    Op.GATHER: Signature(2),
    Op.SCATTER_ADD: Signature(2, (("rows", Kind.DIM),)),
    Op.ONE_HOT: Signature(1, (("depth", Kind.DIM), ("dtype", Kind.DTYPE))),
    Op.PICK: Signature(2),
    Op.SOFTMAX: Signature(1, _AXIS),
    Op.LOG_SOFTMAX: Signature(1, _AXIS),
    Op.CROSS_ENTROPY: Signature(2),
    Op.NORMALIZE: Signature(2),
    Op.KEEP_MASK: Signature(
        1,
        (
            *(("dims", Kind.DIMS), ("dtype", Kind.DTYPE)),
            *(("dropped", Kind.COUNT), ("stream", Kind.COUNT)),
        ),
    ),
}
