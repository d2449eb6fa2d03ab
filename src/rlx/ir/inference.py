"""Shape inference: for each op, the type of its output from the types of its inputs.

One table, keyed by op. A rule also states which attributes are legal, in canonical form alone (axes
not negative and sorted, say); the builder's methods bring what a user writes into that form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from rlx.errors import GraphError
from rlx.ir import dims as dimensions
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.ops import CATALOGUE, BinaryOp, Op, UnaryOp
from rlx.ir.shape import Shape, broadcast_shapes, broadcasts_to
from rlx.ir.slices import sliced_dims
from rlx.ir.windows import folded_dims, unfolded_dims


class ValueType(NamedTuple):
    """What is known of a value before it is computed."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"


Attributes: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[tuple[ValueType, ...], Attributes], ValueType]

INFERENCE: dict[Op, Rule] = {}

_COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE})
_LOGICAL = frozenset({Op.AND, Op.OR, Op.NOT})
_ANY_NUMBER = frozenset({Op.NEG, Op.ABS, Op.RELU})


def infer(op: Op, types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    """The output type of a node. Raises `GraphError` where the node is not legal."""
    signature = CATALOGUE[op]
    wanted = signature.inputs
    if (wanted is None and not types) or (wanted is not None and len(types) != wanted):
        count = "at least one input" if wanted is None else f"{wanted} input(s)"
        raise GraphError(f"{op.value} takes {count}; got {len(types)}")
    return INFERENCE[op](types, attributes)


def accumulation_dtype(dtype: DType) -> DType:
    """The dtype of a sum or product: I64 for integers and BOOL, so that they do not wrap."""
    return dtype if dtype.is_float else DType.I64


def wide_dtype(dtype: DType) -> DType:
    """F32 for half precision, which overflows, or counts with gaps, where F32 does not."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def _rule(*ops: Op) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for op in ops:
            INFERENCE[op] = rule
        return rule

    return register


def _float_only(what: str, kind: ValueType) -> None:
    if not kind.dtype.is_float:
        raise GraphError(f"{what} is defined for floating-point values; got {kind}; cast it first")


@_rule(Op.INPUT, Op.PARAM)
def _declaration(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    return ValueType(attributes["dtype"], Shape(attributes["dims"]))


@_rule(Op.CONSTANT)
def _constant(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    shape = Shape(attributes["dims"])
    dtype: DType = attributes["dtype"]
    if not shape.is_static:
        raise GraphError(f"a constant's shape is known; got {shape}")
    size = shape.size
    assert isinstance(size, int)
    needed, has = size * dtype.itemsize, len(attributes["content"])
    if needed != has:
        raise GraphError(f"a constant {dtype}{shape} needs {needed} bytes, has {has}")
    if dtype is DType.BOOL and attributes["content"].strip(b"\x00\x01"):
        raise GraphError("a BOOL constant's bytes are 0 or 1")
    return ValueType(dtype, shape)


@_rule(Op.SIZE)
def _size(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype: DType = attributes["dtype"]
    if not dtype.is_number:
        raise GraphError("the size of a dimension is a number; got dtype BOOL")
    return ValueType(dtype, Shape([]))


def _unary_rule(op: Op) -> Rule:
    def rule(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
        (operand,) = types
        if op in _LOGICAL:
            if operand.dtype is not DType.BOOL:
                raise GraphError(f"{op.value} takes BOOL; got {operand}")
        elif op in _ANY_NUMBER:
            if not operand.dtype.is_number or (op is not Op.RELU and operand.dtype is DType.U8):
                raise GraphError(f"{op.value} takes signed numbers; got {operand}")
        else:
            _float_only(op.value, operand)
        return operand

    return rule


def _binary_rule(op: Op) -> Rule:
    def rule(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
        left, right = types
        if left.dtype is not right.dtype:
            raise GraphError(
                f"{op.value} takes two values of one dtype; got {left} and {right}; cast one"
            )
        if op in _LOGICAL and left.dtype is not DType.BOOL:
            raise GraphError(f"{op.value} takes BOOL; got {left} and {right}")
        if op not in _LOGICAL and op not in (Op.EQ, Op.NE) and not left.dtype.is_number:
            raise GraphError(f"{op.value} takes numbers; got {left} and {right}; cast them first")
        if op in (Op.DIV, Op.POW):
            _float_only(op.value, left)
        shape = broadcast_shapes([left.shape, right.shape], op.value)
        return ValueType(DType.BOOL if op in _COMPARISONS else left.dtype, shape)

    return rule


INFERENCE.update({member.value: _unary_rule(member.value) for member in UnaryOp})
INFERENCE.update({member.value: _binary_rule(member.value) for member in BinaryOp})


@_rule(Op.WHERE)
def _where(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    condition, chosen, other = types
    if condition.dtype is not DType.BOOL:
        raise GraphError(f"where takes a BOOL condition; got {condition}")
    if chosen.dtype is not other.dtype:
        raise GraphError(f"where takes two values of one dtype; got {chosen} and {other}")
    return ValueType(chosen.dtype, broadcast_shapes([kind.shape for kind in types], "where"))


@_rule(Op.CAST)
def _cast(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    return ValueType(attributes["dtype"], types[0].shape)


@_rule(Op.MATMUL)
def _matmul(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    left, right = types
    if left.dtype is not right.dtype:
        raise GraphError(f"matmul takes two values of one dtype; got {left} and {right}")
    _float_only("matmul", left)
    if left.shape.rank < 2 or right.shape.rank < 2:
        raise GraphError(f"matmul takes two matrices or stacks of them; got {left} and {right}")
    if left.shape[-1] != right.shape[-2]:
        raise GraphError(
            f"matmul: the last dimension of {left.shape} is {left.shape[-1]}, "
            f"the one before last of {right.shape} is {right.shape[-2]}"
        )
    stack = broadcast_shapes([Shape(left.shape.dims[:-2]), Shape(right.shape.dims[:-2])], "matmul")
    return ValueType(left.dtype, Shape([*stack, left.shape[-2], right.shape[-1]]))


def _reduced(shape: Shape, attributes: Attributes) -> Shape:
    axes: tuple[int, ...] = attributes["axes"]
    if list(axes) != sorted(set(axes)) or any(axis >= shape.rank for axis in axes):
        raise GraphError(f"axes {axes} of {shape} are not sorted, distinct and below {shape.rank}")
    if attributes["keepdims"]:
        return Shape([1 if axis in axes else dim for axis, dim in enumerate(shape)])
    return Shape([dim for axis, dim in enumerate(shape) if axis not in axes])


@_rule(Op.REDUCE_SUM, Op.REDUCE_PROD)
def _sum(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    return ValueType(accumulation_dtype(dtype), _reduced(shape, attributes))


@_rule(Op.REDUCE_MEAN)
def _mean(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    return ValueType(dtype if dtype.is_float else DType.F64, _reduced(shape, attributes))


@_rule(Op.REDUCE_MAX, Op.REDUCE_MIN)
def _extreme(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    if not dtype.is_number:
        raise GraphError(f"the maximum and minimum are of numbers; got {types[0]}")
    reduced = _reduced(shape, attributes)
    if any(shape[axis] == 0 for axis in attributes["axes"]):
        raise GraphError(f"there is no maximum or minimum of nothing: {shape} has an empty axis")
    return ValueType(dtype, reduced)


def _check_axis(what: str, shape: Shape, axis: int) -> None:
    if axis >= shape.rank:
        raise GraphError(f"{what}: {shape} has no axis {axis}")


@_rule(Op.ARGMAX)
def _argmax(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    (operand,) = types
    axis = attributes["axis"]
    _check_axis("argmax", operand.shape, axis)
    if operand.shape[axis] == 0 or not operand.dtype.is_number:
        raise GraphError(f"argmax takes numbers and an axis that is not empty; got {operand}")
    return ValueType(
        DType.I64, Shape([dim for index, dim in enumerate(operand.shape) if index != axis])
    )


@_rule(Op.RESHAPE)
def _reshape(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    target = Shape(attributes["dims"])
    if target.size != shape.size:
        raise GraphError(f"reshape: {shape} has {shape.size} elements, {target} has {target.size}")
    return ValueType(dtype, target)


@_rule(Op.TRANSPOSE)
def _transpose(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    axes = attributes["axes"]
    if sorted(axes) != list(range(shape.rank)):
        raise GraphError(f"transpose: axes {list(axes)} are no order of the axes of {shape}")
    return ValueType(dtype, Shape([shape[axis] for axis in axes]))


@_rule(Op.BROADCAST)
def _broadcast(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    target = Shape(attributes["dims"])
    if not broadcasts_to(shape, target):
        raise GraphError(f"{shape} does not broadcast to {target}")
    return ValueType(dtype, target)


@_rule(Op.SLICE)
def _slice(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    return ValueType(dtype, Shape(sliced_dims(shape, attributes)))


@_rule(Op.UNSLICE)
def _unslice(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    whole = Shape(attributes["dims"])
    part = Shape(sliced_dims(whole, attributes))
    if part != shape:
        raise GraphError(f"unslice: that slice of {whole} is {part}; got {shape}")
    return ValueType(dtype, whole)


@_rule(Op.UNFOLD)
def _unfold(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    return ValueType(dtype, Shape(unfolded_dims(shape, attributes)))


@_rule(Op.FOLD)
def _fold(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    dtype, shape = types[0]
    if not dtype.is_number:
        raise GraphError(f"fold adds numbers; got {types[0]}")
    return ValueType(dtype, Shape(folded_dims(shape, attributes)))


@_rule(Op.CONCAT)
def _concat(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    axis = attributes["axis"]
    first = types[0]
    _check_axis("concat", first.shape, axis)
    total: Dim = 0
    for kind in types:
        same_rank = kind.shape.rank == first.shape.rank
        if kind.dtype is not first.dtype or not same_rank or _but(kind, axis) != _but(first, axis):
            every = ", ".join(str(one) for one in types)
            raise GraphError(f"concat on axis {axis}: {every} differ in more than that axis")
        total = dimensions.add(total, kind.shape[axis])
    return ValueType(
        first.dtype, Shape([*first.shape.dims[:axis], total, *first.shape.dims[axis + 1 :]])
    )


def _but(kind: ValueType, axis: int) -> tuple[Dim, ...]:
    return kind.shape.dims[:axis] + kind.shape.dims[axis + 1 :]


def _check_indices(what: str, indices: ValueType) -> None:
    if indices.dtype not in (DType.I32, DType.I64):
        raise GraphError(f"{what} takes I32 or I64 indices; got {indices}")


@_rule(Op.GATHER)
def _gather(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    table, indices = types
    _check_indices("gather", indices)
    if table.shape.rank < 1:
        raise GraphError(f"gather takes rows of axis 0; got a table {table}")
    return ValueType(table.dtype, Shape([*indices.shape, *table.shape.dims[1:]]))


@_rule(Op.SCATTER_ADD)
def _scatter_add(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    updates, indices = types
    _check_indices("scatter_add", indices)
    if updates.shape.dims[: indices.shape.rank] != indices.shape.dims:
        raise GraphError(f"scatter_add: updates {updates} do not begin with {indices.shape}")
    if not updates.dtype.is_number:
        raise GraphError(f"scatter_add adds numbers; got {updates}")
    rest = updates.shape.dims[indices.shape.rank :]
    return ValueType(updates.dtype, Shape([attributes["rows"], *rest]))


@_rule(Op.ONE_HOT)
def _one_hot(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    (indices,) = types
    _check_indices("one_hot", indices)
    return ValueType(attributes["dtype"], Shape([*indices.shape, attributes["depth"]]))


@_rule(Op.PICK)
def _pick(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    values, indices = types
    _check_indices("pick", indices)
    if values.shape.rank < 1 or values.shape.dims[:-1] != indices.shape.dims:
        raise GraphError(f"pick takes values [..., n] and indices [...]; got {values}, {indices}")
    return ValueType(values.dtype, indices.shape)


@_rule(Op.NORMALIZE)
def _normalize(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    values, epsilon = types
    if values.shape.rank < 1 or values.dtype not in (DType.F32, DType.F64):
        raise GraphError(f"normalize takes F32 or F64 with an axis; got {values}")
    if epsilon != ValueType(values.dtype, Shape([])):
        raise GraphError(f"normalize takes a number of {values.dtype} as epsilon; got {epsilon}")
    return values


@_rule(Op.SOFTMAX, Op.LOG_SOFTMAX)
def _softmax(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    _float_only("softmax", types[0])
    _check_axis("softmax", types[0].shape, attributes["axis"])
    return types[0]


@_rule(Op.KEEP_MASK)
def _keep_mask(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    (key,) = types
    if key != ValueType(DType.I64, Shape([3])):
        raise GraphError(f"keep_mask takes a key I64[3] of seed, step, microbatch; got {key}")
    mask = ValueType(attributes["dtype"], Shape(attributes["dims"]))
    _float_only("keep_mask", mask)
    return mask


@_rule(Op.CROSS_ENTROPY)
def _cross_entropy(types: tuple[ValueType, ...], attributes: Attributes) -> ValueType:
    logits, labels = types
    _float_only("cross_entropy", logits)
    _check_indices("cross_entropy", labels)
    if logits.shape.rank < 1 or logits.shape.dims[:-1] != labels.shape.dims:
        raise GraphError(
            f"cross_entropy takes logits [..., classes] and labels [...]; got {logits} and {labels}"
        )
    if logits.shape[-1] == 0:
        raise GraphError("cross_entropy needs at least one class")
    return ValueType(wide_dtype(logits.dtype), labels.shape)
