"""The builder's methods: what a user calls, brought into the canonical form that a node holds."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlx.errors import GraphError
from rlx.ir.dims import Dim, canonical_dim, divide, product
from rlx.ir.dtype import DType
from rlx.ir.ops import BinaryOp, Op, ReduceOp, UnaryOp
from rlx.ir.shape import Shape
from rlx.ir.slices import canonical_bounds
from rlx.ir.value import Value

_STRUCT_FORMATS = {
    DType.F16: "<e",
    DType.F32: "<f",
    DType.F64: "<d",
    DType.I8: "<b",
    DType.U8: "<B",
    DType.I32: "<i",
    DType.I64: "<q",
    DType.BOOL: "<?",
}


class Builder(ABC):
    """One method for each op. `Graph` is the one class below it, and holds the nodes."""

    @abstractmethod
    def add(self, op: Op, inputs: Sequence[int], attributes: Mapping[str, Any]) -> Value:
        """Append a node; see `Graph.add`."""

    @abstractmethod
    def _id(self, value: object) -> int:
        """The id of a value of this graph; any other is a `GraphError`."""

    def input(self, name: str, dims: Iterable[Dim], dtype: DType = DType.F32) -> Value:
        """An array that is given at each run. A name among `dims` is bound by what is given."""
        return self.add(Op.INPUT, (), _declared(name, dims, dtype))

    def param(self, name: str, dims: Iterable[Dim], dtype: DType = DType.F32) -> Value:
        """An array that is kept between runs, and that training changes. All `dims` are ints."""
        return self.add(Op.PARAM, (), _declared(name, dims, dtype))

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        """A fixed array: a numpy array of a supported dtype, or a number (F32 unless said)."""
        if isinstance(array, bool | int | float):
            default = DType.BOOL if isinstance(array, bool) else DType.F32
            return self.scalar(array, default if dtype is None else dtype)
        is_masked = hasattr(array, "mask")
        if is_masked or not hasattr(array, "dtype") or not hasattr(array, "tobytes"):
            raise GraphError(f"a constant is a numpy array or a number; got {type(array).__name__}")
        known = {member.value: member for member in DType}
        if array.dtype.name not in known:
            raise GraphError(
                f"a constant's dtype is one of {', '.join(known)}; got {array.dtype.name}"
            )
        found = known[array.dtype.name]
        if dtype not in (None, found):
            raise GraphError(f"the array is {found}, not {dtype}; convert it first")
        content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        dims = tuple(int(size) for size in array.shape)
        return self.add(Op.CONSTANT, (), {"content": content, "dims": dims, "dtype": found})

    def scalar(self, number: bool | int | float, dtype: DType) -> Value:
        """A constant without axes, rounded to `dtype`; one that does not fit is a `GraphError`."""
        if not isinstance(number, bool | int | float):
            raise GraphError(f"expected a value or a number; got {type(number).__name__}")
        whole = float(number).is_integer() if isinstance(number, float) else True
        if (dtype is DType.BOOL) is not isinstance(number, bool) or (
            dtype.is_integer and not whole
        ):
            raise GraphError(f"the number {number!r} is no {dtype}")
        return self.add(
            Op.CONSTANT, (), {"content": _packed(number, dtype), "dims": (), "dtype": dtype}
        )

    def size(self, dim: Dim, dtype: DType = DType.F32) -> Value:
        """The value of a dimension as a number without axes, known when the graph runs."""
        return self.add(Op.SIZE, (), {"dim": canonical_dim(dim), "dtype": dtype})

    def unary(self, op: UnaryOp, a: Value) -> Value:
        """An elementwise op of one value."""
        return self.add(op.value, [self._id(a)], {})

    def binary(self, op: BinaryOp, a: Value, b: Value) -> Value:
        """An elementwise op of two values of one dtype, broadcast as numpy does it."""
        return self.add(op.value, [self._id(a), self._id(b)], {})

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the BOOL condition holds, else `b`; all three are broadcast."""
        return self.add(Op.WHERE, [self._id(condition), self._id(a), self._id(b)], {})

    def cast(self, a: Value, dtype: DType) -> Value:
        """The same values in another dtype, converted as numpy's `astype` does it."""
        return self.add(Op.CAST, [self._id(a)], {"dtype": dtype})

    def matmul(self, a: Value, b: Value) -> Value:
        """Matrix product over the last two axes; the axes before them are broadcast."""
        return self.add(Op.MATMUL, [self._id(a), self._id(b)], {})

    def reduce(
        self,
        op: ReduceOp,
        a: Value,
        axes: Sequence[int] | int | None = None,
        keepdims: bool = False,
    ) -> Value:
        """Combine the elements along `axes` (all for None, none for an empty list).

        Sums and products of integers are I64 and their mean is F64, so that they do not wrap.
        """
        rank = a.shape.rank
        wanted = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
        found = [_axis(op.name.lower(), a.shape, axis) for axis in wanted]
        if len(set(found)) != len(found):
            raise GraphError(f"axes {list(wanted)} of {a.shape} name one axis twice")
        attributes = {"axes": tuple(sorted(found)), "keepdims": bool(keepdims)}
        return self.add(op.value, [self._id(a)], attributes)

    def argmax(self, a: Value, axis: int) -> Value:
        """The place (I64) of the first maximum along `axis`, which is dropped."""
        return self.add(Op.ARGMAX, [self._id(a)], {"axis": _axis("argmax", a.shape, axis)})

    def reshape(self, a: Value, dims: Iterable[Dim]) -> Value:
        """The same elements in the same order; one of `dims` may be -1, others may be names."""
        wanted = tuple(dims)
        if sum(1 for dim in wanted if _is_free(dim)) > 1:
            raise GraphError(f"reshape: at most one dimension is -1; got {list(wanted)}")
        known = [canonical_dim(dim) for dim in wanted if not _is_free(dim)]
        if len(known) < len(wanted):
            rest = divide(a.shape.size, product(known)) if product(known) != 0 else None
            if rest is None:
                raise GraphError(f"reshape: {a.shape} does not divide into {list(wanted)}")
            position = next(index for index, dim in enumerate(wanted) if _is_free(dim))
            known.insert(position, rest)
        return self.add(Op.RESHAPE, [self._id(a)], {"dims": tuple(known)})

    def transpose(self, a: Value, axes: Sequence[int] | None = None) -> Value:
        """The axes in the given order; reversed for None."""
        rank = a.shape.rank
        order = range(rank - 1, -1, -1) if axes is None else axes
        found = tuple(_axis("transpose", a.shape, axis) for axis in order)
        return self.add(Op.TRANSPOSE, [self._id(a)], {"axes": found})

    def broadcast_to(self, a: Value, dims: Iterable[Dim]) -> Value:
        """`a` repeated to the given shape, as numpy broadcasts."""
        return self.add(Op.BROADCAST, [self._id(a)], {"dims": Shape(dims).dims})

    def slice(
        self,
        a: Value,
        starts: Sequence[int | None],
        stops: Sequence[int | None],
        steps: Sequence[int | None] | None = None,
    ) -> Value:
        """Python's slice on every axis at once; a bound may be None or count from the end."""
        return self.add(Op.SLICE, [self._id(a)], canonical_bounds(a.shape, starts, stops, steps))

    def index(self, a: Value, keys: tuple[object, ...]) -> Value:
        """What `value[keys]` builds: slices, one `...`, and ints, which drop their axis."""
        if sum(1 for key in keys if key is Ellipsis) > 1:
            raise GraphError("an index has at most one ...")
        given = len(keys) - (Ellipsis in keys)
        if given > a.shape.rank:
            raise GraphError(f"{given} indices for the {a.shape.rank} axes of {a.shape}")
        place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
        rest = tuple(slice(None) for _ in range(a.shape.rank - given))
        whole = keys[:place] + rest + keys[place + 1 :]
        slices = [_as_slice(a.shape, axis, key) for axis, key in enumerate(whole)]
        part = self.slice(
            a, [s.start for s in slices], [s.stop for s in slices], [s.step for s in slices]
        )
        kept = [part.shape[axis] for axis, key in enumerate(whole) if isinstance(key, slice)]
        return part if len(kept) == part.shape.rank else self.reshape(part, kept)

    def unslice(
        self,
        a: Value,
        dims: Iterable[Dim],
        starts: Sequence[int | None],
        stops: Sequence[int | None],
        steps: Sequence[int | None] | None = None,
    ) -> Value:
        """Zeros of shape `dims` with `a` in the place that the same `slice` would take."""
        shape = Shape(dims)
        bounds = canonical_bounds(shape, starts, stops, steps)
        return self.add(Op.UNSLICE, [self._id(a)], {"dims": shape.dims, **bounds})

    def unfold(
        self, a: Value, axes: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
    ) -> Value:
        """Windows of `sizes` that slide along `axes`, `steps` apart, as views of `a`.

        Each of the axes, whose length is known, becomes the number of windows that lie wholly in
        it; the sizes are appended to the shape.
        """
        found = tuple(_axis("unfold", a.shape, axis) for axis in axes)
        attributes = {"axes": found, "sizes": tuple(sizes), "steps": tuple(steps)}
        return self.add(Op.UNFOLD, [self._id(a)], attributes)

    def fold(
        self, a: Value, axes: Sequence[int], lengths: Sequence[int], steps: Sequence[int]
    ) -> Value:
        """The sum of windows in the places where `unfold` takes them from axes of `lengths`.

        Elements that lie in several windows are added in the order of their places there.
        """
        attributes = {"axes": tuple(axes), "lengths": tuple(lengths), "steps": tuple(steps)}
        return self.add(Op.FOLD, [self._id(a)], attributes)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """The values one after the other along `axis`."""
        if not values:
            raise GraphError("concat takes at least one value")
        found = _axis("concat", values[0].shape, axis)
        return self.add(Op.CONCAT, [self._id(value) for value in values], {"axis": found})

    def gather(self, table: Value, indices: Value) -> Value:
        """Rows of axis 0 of `table` by number; an index out of range is an error at the run."""
        return self.add(Op.GATHER, [self._id(table), self._id(indices)], {})

    def scatter_add(self, updates: Value, indices: Value, rows: Dim) -> Value:
        """`rows` rows of zeros, with each update added to the row that its index names."""
        attributes = {"rows": canonical_dim(rows)}
        return self.add(Op.SCATTER_ADD, [self._id(updates), self._id(indices)], attributes)

    def one_hot(self, indices: Value, depth: Dim, dtype: DType = DType.F32) -> Value:
        """A new last axis of length `depth` with 1 at each index and 0 elsewhere."""
        attributes = {"depth": canonical_dim(depth), "dtype": dtype}
        return self.add(Op.ONE_HOT, [self._id(indices)], attributes)

    def pick(self, a: Value, indices: Value) -> Value:
        """The element of each row of the last axis that `indices` (I32 or I64 [...]) names.

        An index out of range is an error at the run.
        """
        return self.add(Op.PICK, [self._id(a), self._id(indices)], {})

    def normalize(self, a: Value, epsilon: float) -> Value:
        """(a - mean) / sqrt(variance + epsilon) over the last axis, for F32 and F64.

        The variance is the mean square deviation. See `layer_norm`, which is made of it.
        """
        return self.add(Op.NORMALIZE, [self._id(a), self.scalar(epsilon, a.dtype).id], {})

    def softmax(self, a: Value, axis: int) -> Value:
        """exp(a) / sum(exp(a)) along `axis`, computed so that large values do not overflow."""
        return self.add(Op.SOFTMAX, [self._id(a)], {"axis": _axis("softmax", a.shape, axis)})

    def log_softmax(self, a: Value, axis: int) -> Value:
        """log(softmax(a)) along `axis`, computed so that large values do not overflow."""
        found = _axis("log_softmax", a.shape, axis)
        return self.add(Op.LOG_SOFTMAX, [self._id(a)], {"axis": found})

    def keep_mask(
        self, key: Value, dims: Iterable[Dim], dropped: int, stream: int, dtype: DType = DType.F32
    ) -> Value:
        """A random mask of `dims`: 0 with probability p = dropped / 2**32, else 1 / (1 - p).

        It is a function of `key` (I64[3]: seed, step, microbatch) and of `stream` alone; where the
        seed is negative it is 1 throughout. Element number i in row order is dropped where the i-th
        32-bit word (low half first) of Philox4x64-10 with key (seed, stream) and counter (1, step,
        microbatch, 0) onward is below `dropped`.
        Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
        attributes = {"dims": Shape(dims).dims, "dtype": dtype, "dropped": dropped}
        return self.add(Op.KEEP_MASK, [self._id(key)], {**attributes, "stream": stream})

    def cross_entropy(self, logits: Value, labels: Value) -> Value:
        """-log_softmax(logits)[label] over the last axis, one loss a label.

        `logits` is [..., classes], `labels` is [...] of I32 or I64. The loss of F16 and BF16 logits
        is F32, which holds what they cannot. A label out of range is an error at the run.
        """
        return self.add(Op.CROSS_ENTROPY, [self._id(logits), self._id(labels)], {})


def _declared(name: str, dims: Iterable[Dim], dtype: DType) -> dict[str, Any]:
    return {"name": name, "dims": Shape(dims).dims, "dtype": dtype}


def _is_free(dim: object) -> bool:
    return isinstance(dim, int) and dim == -1


def _axis(what: str, shape: Shape, axis: object) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise GraphError(f"{what}: an axis is an int; got {axis!r}")
    if not -shape.rank <= axis < shape.rank:
        raise GraphError(f"{what}: {shape} has no axis {axis}")
    return axis % shape.rank


def _as_slice(shape: Shape, axis: int, key: object) -> slice:
    if isinstance(key, slice):
        return key
    if isinstance(key, bool) or not isinstance(key, int):
        raise GraphError(f"an index is a slice, an int or ...; got {key!r}")
    dim = shape[axis]
    if isinstance(dim, int) and not -dim <= key < dim:
        raise GraphError(f"index {key} is out of range for axis {axis} of {shape}")
    return slice(key, key + 1 if key != -1 else None)


def _packed(number: bool | int | float, dtype: DType) -> bytes:
    try:
        if dtype is DType.BF16:
            return _bf16(float(number))
        plain = int(number) if dtype.is_integer else number
        return struct.pack(_STRUCT_FORMATS[dtype], plain)
    except (struct.error, OverflowError) as error:
        raise GraphError(f"the number {number!r} does not fit {dtype}: {error}") from None


def _bf16(number: float) -> bytes:
    """The upper half of the float32, rounded to nearest, ties to even; NaN stays NaN."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    if number != number:
        return b"\xc0\x7f"
    return struct.pack("<H", (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
