"""The shape of the kernel table, and the emitter that a kernel speaks to.

A kernel runs nothing: it states the numpy calls that compute its node. Views stand for the arrays,
which exist only when the whole plan is laid out in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy

from rlx.backends.dtypes import Array, is_half, numpy_dtype
from rlx.backends.layout import Storage, View, whole_storage
from rlx.errors import UsageError
from rlx.ir import DType, Node, Op, Value


class Call(NamedTuple):
    """`function(*args)`, where each `View` among the arguments becomes an array at last.

    The result goes into the last argument, or into `out` where that is given by keyword. `time` is
    the place of its node among those that are computed, and `label` names the node.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    time: int
    label: str
    out: View | None = None


def label_of(node: Node, origin: Node) -> str:
    """A node that is planned, by the node of the user's graph that it stems from."""
    within = "" if node.op is origin.op else f"/{node.op.value}"
    return f"%{origin.id} {origin.op.value}{within}"


class Emitter:
    """Takes down the calls of one node after the other, and the scratch storage they ask for.

    `origin` is the node of the user's graph that the node at hand stems from, which errors speak
    of, `last_source` the input or parameter whose elements its last operand holds ("" for none),
    and `scratches` the storage that it asked for so far.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.scratches: list[Storage] = []
        self.origin: Node
        self.last_source = ""
        self._time = -1
        self._label = ""

    def begin(self, time: int, node: Node, origin: Node, last_source: str = "") -> None:
        """What follows are the calls of `node`, the `time`-th that is computed."""
        self.origin, self._time, self._label = origin, time, label_of(node, origin)
        self.last_source = last_source

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Take down one call."""
        self.calls.append(Call(function, args, self._time, self._label))

    def ufunc(self, function: Callable[..., Any], *args: View | Array) -> None:
        """Take down a ufunc's call, whose last argument is where the result goes.

        Given by place, it saves 0.1 us a call; numpy 2.4 deprecates that for two ufuncs.
        """
        if function in (numpy.maximum, numpy.minimum):
            *operands, out = args
            assert isinstance(out, View)
            self.calls.append(Call(function, tuple(operands), self._time, self._label, out))
        else:
            self.call(function, *args)

    def scratch(
        self, dtype: DType, shape: Sequence[int], order: Sequence[int] | None = None
    ) -> View:
        """Memory for this node alone, in row order unless said; what it holds at first is not
        defined."""
        view = whole_storage(f"scratch of {self._label}", dtype, shape, order)
        self.scratches.append(view.storage)
        return view

    def copy(self, target: View, source: View) -> None:
        """Copy element by element, converting as `astype` does."""
        if target.dtype is source.dtype:
            self.call(numpy.copyto, target, source)
        else:
            self.call(numpy.copyto, target, source, "unsafe")

    def converted(self, view: View, dtype: DType) -> View:
        """`view` itself if it is of `dtype`, else a copy in scratch that is."""
        if view.dtype is dtype:
            return view
        copy = self.scratch(dtype, view.shape)
        self.copy(copy, view)
        return copy

    def contiguous(self, view: View) -> View:
        """`view` itself if its elements lie side by side, else a copy in scratch where they do."""
        if view.is_contiguous:
            return view
        copy = self.scratch(view.dtype, view.shape)
        self.copy(copy, view)
        return copy

    def widened(self, view: View) -> View:
        """`view` in F32 where it is F16 or BF16, else itself."""
        return self.converted(view, DType.F32) if is_half(view.dtype) else view

    def wide_like(self, out: View) -> View:
        """Where a result for `out` is accumulated: F32 scratch for F16 and BF16, else `out`."""
        return self.scratch(DType.F32, out.shape) if is_half(out.dtype) else out

    def narrow(self, out: View, wide: View) -> None:
        """Round what was made in `wide_like(out)` into `out`, once."""
        if wide is not out:
            self.copy(out, wide)

    def refuse(self, reason: str) -> NoReturn:
        """The shapes of this run cannot be computed."""
        raise UsageError(f"{self.origin}: {reason}")


Build: TypeAlias = Callable[[Emitter, Node, Sequence[View], View], None]
"""Emit the calls that compute the node into the last argument."""

Alias: TypeAlias = Callable[[Node, View, tuple[int, ...]], View | None]
"""The node's value as a view of its one operand in the given shape; None where it takes a copy."""

Fill: TypeAlias = Callable[[Node, Mapping[str, int]], Array]
"""The value of a node without operands, known as soon as the names are bound.

Raises `UsageError` where there is none; the planner puts the node before it.
"""


Lower: TypeAlias = Callable[[Node, Sequence[Value]], Value]
"""The node as a composition of other ops, on its operands in a new graph."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """How an op runs.

    `build` emits its calls. `overwrites` are the operands whose memory may also be the result's.
    `alias` tells where the result needs no call at all. With `keeps_order` (an elementwise op) the
    result lies as the operands do, so that the loops are long. `fill` makes the value of a node
    without operands. `lower` states it by other ops before anything is planned, so that what it
    shares with its gradient is computed once. An op with none of these is filled by the caller
    (inputs, parameters).
    """

    build: Build | None = None
    overwrites: tuple[int, ...] = ()
    alias: Alias | None = None
    fill: Fill | None = None
    keeps_order: bool = False
    lower: Lower | None = None


KERNELS: dict[Op, Kernel] = {}


def kernel(*ops: Op, **options: Any) -> Callable[[Build], Build]:
    """Enter the function below into the table as the `build` of `ops`; `options` as in `Kernel`."""

    def register(build: Build) -> Build:
        for op in ops:
            KERNELS[op] = Kernel(build, **options)
        return build

    return register


def widened(value: Value) -> Value:
    """`value` in F32 where it is F16 or BF16, else itself; for `lower`."""
    return value.cast(DType.F32) if is_half(value.dtype) else value


def narrowed(value: Value, node: Node) -> Value:
    """What was made of `widened` operands, rounded once to the node's dtype; for `lower`."""
    return value if value.dtype is node.dtype else value.cast(node.dtype)


def number(value: float, dtype: DType) -> Array:
    """A number as an array without axes, so that no call converts it again."""
    return numpy.array(value, numpy_dtype(dtype))
