"""Random graphs with the arrays to run them on: every op, any dtype, odd shapes, odd numbers.

A graph is grown from leaves that are made as ops ask for them. What a builder refuses is not grown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from backends_support import FLOATS, INTEGERS

from rlx.backends import numpy_dtype
from rlx.errors import GraphError
from rlx.ir import BinaryOp, DType, Graph, ReduceOp, UnaryOp, evaluate

SMALL = [0, 1, 1, 2, 2, 3, 3, 4, 5, "n", "n", "m"]
LARGE = [1, 2, 3, 8, 16, 33, 64, 130, "n"]
MOST_ELEMENTS = 40_000
MOST_WINDOWED = 4_000  # the oracle takes windows element by element
SPECIALS = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-310, 1e-39, 6e-8, 3e38, -1e30, 65504.0]


@dataclass
class Growing:
    """A graph while it grows: its values so far, the leaves' arrays, the sizes of its names."""

    rng: np.random.Generator
    dims: list = field(default_factory=lambda: SMALL)
    special: float = 0.0
    whole: float = 0.4
    floats: list = field(default_factory=lambda: FLOATS)
    others: list = field(default_factory=lambda: [*INTEGERS, DType.BOOL])
    unary: list = field(default_factory=lambda: [*UnaryOp])
    binary: list = field(default_factory=lambda: [*BinaryOp])
    graph: Graph = field(default_factory=lambda: Graph("random"))
    values: list = field(default_factory=list)
    arrays: dict = field(default_factory=dict)
    bindings: dict = field(default_factory=dict)

    def chance(self, share):
        return self.rng.random() < share

    def one_of(self, things):
        return things[int(self.rng.integers(len(things)))]

    def int(self, low, high):
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def size(self, dim):
        return evaluate(dim, self.bindings)

    def shape(self, least=0, most=4, named=True):
        dims = [dim for dim in self.dims if named or isinstance(dim, int)]
        return [self.one_of(dims) for _ in range(self.int(least, most))]

    def bound(self, value):
        return value.shape.bind(self.bindings)

    def leaf(self, dtype, dims, array=None):
        """An input, parameter or constant of that type."""
        array = self.numbers(dtype, [self.size(dim) for dim in dims]) if array is None else array
        name = f"leaf{len(self.graph.nodes)}"
        kind = self.int(0, 2) if all(isinstance(dim, int) for dim in dims) else 0
        if kind == 2:
            return self.graph.constant(array)
        self.arrays[name] = array
        return (self.graph.param if kind == 1 else self.graph.input)(name, dims, dtype)

    def numbers(self, dtype, shape):
        """Whole numbers, plain ones, or ones of any size, with special ones here and there."""
        rng = self.rng
        if dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if dtype.is_integer:
            info = np.iinfo(numpy_dtype(dtype))
            low, high = (info.min, info.max) if self.chance(self.special) else (-4, 5)
            return rng.integers(max(low, info.min), high, shape).astype(numpy_dtype(dtype))
        made = rng.uniform(-3, 3, shape)
        if self.chance(self.whole):
            made = np.round(made)
        elif self.chance(self.special):
            made = made * 10.0 ** rng.integers(-40, 38, shape)
        if self.chance(self.special):
            where = rng.random(shape) < self.one_of([0.05, 0.3])
            made = np.where(where, rng.choice(SPECIALS, shape), made)
        with np.errstate(all="ignore"):
            return np.asarray(made).astype(numpy_dtype(dtype))

    def pick(self, dtypes=None, least=0, suits=lambda value: True):
        """A value there is, the late ones more likely, or a new leaf."""
        good = [
            one
            for one in self.values
            if (dtypes is None or one.dtype in dtypes) and one.shape.rank >= least and suits(one)
        ]
        if good and self.chance(0.85):
            return good[max(self.int(0, len(good) - 1), self.int(0, len(good) - 1))]
        return self.leaf(self.one_of(dtypes or [*self.floats, *self.others]), self.shape(least))

    def partner(self, value, dtype=None, dims=None):
        """Another value of that dtype that broadcasts against `value`."""
        dtype, dims = dtype or value.dtype, list(dims or value.shape)
        good = [
            one
            for one in self.values
            if one.dtype is dtype and (not dims or one.shape.dims in (value.shape.dims, ()))
        ]
        if good and self.chance(0.7):
            return self.one_of(good)
        kept = dims[self.int(0, len(dims)) if self.chance(0.4) else 0 :]
        kept = [1 if self.chance(0.25) else dim for dim in kept]
        return self.leaf(dtype, kept)

    def indices(self, dims, count):
        """Numbers below `count`, or now and then not."""
        shape = [self.size(dim) for dim in dims]
        dtype = self.one_of([DType.I32, DType.I64])
        made = self.rng.integers(0, max(self.size(count), 1), shape)
        if made.size and self.chance(0.02):
            made[tuple(0 for _ in shape)] = self.one_of([-1, self.size(count)])
        return self.leaf(dtype, dims, made.astype(numpy_dtype(dtype)))


def unary(on):
    op = on.one_of(on.unary)
    numbers = [one for one in (*on.floats, *INTEGERS) if op is UnaryOp.RELU or one != DType.U8]
    whole = op in (UnaryOp.NEG, UnaryOp.ABS, UnaryOp.RELU)
    wanted = [DType.BOOL] if op is UnaryOp.NOT else numbers if whole else on.floats
    return on.graph.unary(op, on.pick(wanted))


def binary(on):
    op = on.one_of(on.binary)
    logical, floats = op in (BinaryOp.AND, BinaryOp.OR), op in (BinaryOp.DIV, BinaryOp.POW)
    wanted = [DType.BOOL] if logical else on.floats if floats else [*on.floats, *INTEGERS]
    if op in (BinaryOp.EQ, BinaryOp.NE):
        wanted = [*wanted, DType.BOOL]
    a = on.pick(wanted)
    b = on.partner(a)
    return on.graph.binary(op, *((a, b) if on.chance(0.5) else (b, a)))


def arithmetic(on):
    a = on.pick(on.floats)
    op = on.one_of([BinaryOp.ADD, BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX])
    return on.graph.binary(op, a, on.partner(a))


def where(on):
    a = on.pick()
    condition = on.partner(a, DType.BOOL)
    return on.graph.where(condition, a, on.partner(a))


def cast(on):
    return on.pick().cast(on.one_of([*DType]))


def matmul(on):
    a = on.pick(on.floats, 2)
    dims = [*a.shape.dims[: -2 if on.chance(0.5) else 0], a.shape[-1], on.one_of(on.dims)]
    dims = dims[-on.int(2, len(dims)) :]
    return a @ on.leaf(a.dtype, dims)


def reduction(on):
    a = on.pick()
    rank = a.shape.rank
    axes = [axis for axis in range(rank) if on.chance(0.5)]
    if on.chance(0.3):
        axes = [*range(rank)][: on.int(0, rank)]
    return on.graph.reduce(on.one_of([*ReduceOp]), a, axes, on.chance(0.5))


def argmax(on):
    a = on.pick([*on.floats, *INTEGERS], 1)
    return on.graph.argmax(a, on.int(0, a.shape.rank - 1))


def shaped(on):
    a = on.pick(least=1)
    kind, rank = on.int(0, 4), a.shape.rank
    if kind == 0:
        return on.graph.reshape(a, [-1])
    if kind == 1:
        return on.graph.reshape(a, [*a.shape.dims[: on.int(0, rank - 1)], -1])
    if kind == 2:
        return on.graph.reshape(a, [1, *a.shape.dims, 1])
    if kind == 3:
        return a.transpose(*[int(axis) for axis in on.rng.permutation(rank)])
    dims = [on.one_of(on.dims) if dim == 1 else dim for dim in a.shape.dims]
    return on.graph.broadcast_to(a, [*on.shape(0, 2), *dims])


def bounds(on, dim):
    if on.chance(0.4):
        return None, None, 1 if on.chance(0.7) else -1
    if isinstance(dim, str):
        return on.one_of([(1, None, 1), (None, -1, 1), (None, 1, 1), (-1, None, 1)])
    start, stop = sorted(on.int(0, dim) for _ in range(2))
    step = on.one_of([1, 1, 1, 2, -1, -2])
    return (start, stop, step) if step > 0 else (stop, start, step)


def sliced(on):
    a = on.pick(least=1)
    starts, stops, steps = zip(*(bounds(on, dim) for dim in a.shape), strict=True)
    return on.graph.slice(a, starts, stops, steps)


def unsliced(on):
    whole = on.shape(1, 3)
    columns = zip(*(bounds(on, dim) for dim in whole), strict=True)
    starts, stops, steps = columns
    part = on.graph.slice(on.leaf(DType.BOOL, whole), starts, stops, steps)
    a = on.pick(suits=lambda value: value.shape == part.shape)
    if a.shape != part.shape:
        a = on.graph.slice(on.leaf(a.dtype, whole), starts, stops, steps)
    return on.graph.unslice(a, whole, starts, stops, steps)


def taken_apart(on):
    """Parts of a value, worked on apart and put together: what `tiled` sees."""
    a = on.pick(on.floats, 1)
    axis = on.int(0, a.shape.rank - 1)
    length = a.shape[axis]
    if isinstance(length, str) or length < 2:
        return concat(on)
    edge = on.int(1, length - 1)
    total = None
    for low, high in ((0, edge), (edge, length)):
        starts, stops = [None] * a.shape.rank, [None] * a.shape.rank
        starts[axis], stops[axis] = low, high
        part = on.graph.slice(a, starts, stops) * on.one_of([1.0, -2.0])
        spread = on.graph.unslice(part, a.shape, starts, stops)
        total = spread if total is None else total + spread
    return total


def windows(on):
    a = on.pick(least=1, suits=lambda value: np.prod(on.bound(value)) <= MOST_WINDOWED)
    known = [axis for axis, dim in enumerate(a.shape) if isinstance(dim, int) and dim]
    axes = sorted(on.rng.permutation(known)[: on.int(1, 2)].tolist())
    sizes = [on.int(1, min(int(a.shape[axis]), 4)) for axis in axes]
    steps = [on.int(1, 3) for _ in axes]
    lengths = [a.shape[axis] for axis in axes]
    unfolded = on.graph.unfold(a, axes, sizes, steps)
    if np.prod(on.bound(unfolded)) > MOST_WINDOWED or not on.chance(0.6) or not a.dtype.is_number:
        return unfolded
    return on.graph.fold(unfolded * unfolded, axes, lengths, steps)


def convolution(on):
    dtype = on.one_of(on.floats)
    groups = on.one_of([1, 1, 2])
    channels, filters = groups * on.one_of([1, 2, 8]), groups * on.int(1, 3)
    x = on.leaf(dtype, [on.one_of(on.dims[:4]), on.int(2, 5), on.int(2, 5), channels])
    fitting = [one for one in on.values if one.dtype is dtype and one.shape == x.shape]
    x = on.one_of(fitting) if fitting else x
    kernel = on.leaf(dtype, [on.int(1, 3), on.int(1, 3), channels // groups, filters])
    made = on.graph.conv2d(x, kernel, on.int(1, 3), on.int(0, 2), groups)
    if on.chance(0.5):
        pool = on.graph.max_pool if on.chance(0.5) else on.graph.average_pool
        return pool(made, on.int(1, 2), on.one_of([None, 1, 3]))
    return made


def concat(on):
    a = on.pick(least=1)
    axis = on.int(0, a.shape.rank - 1)

    def suits(value):
        rest = [*value.shape.dims[:axis], *value.shape.dims[axis + 1 :]]
        return rest == [*a.shape.dims[:axis], *a.shape.dims[axis + 1 :]]

    return on.graph.concat([a, *(on.pick([a.dtype], 1, suits) for _ in range(on.int(0, 2)))], axis)


def gather(on):
    table = on.pick(least=1)
    return on.graph.gather(table, on.indices(on.shape(0, 2), table.shape[0]))


def scatter_add(on):
    updates = on.pick([*on.floats, *INTEGERS], 1)
    rows, first = on.one_of(on.dims), updates.shape.dims[: on.int(0, updates.shape.rank)]
    return on.graph.scatter_add(updates, on.indices(first, rows), rows)


def one_hot(on):
    depth = on.one_of(on.dims)
    dtype = on.one_of([*DType])
    return on.graph.one_hot(on.indices(on.shape(0, 2), depth), depth, dtype)


def of_rows(on):
    """Pick, and the cross-entropy."""
    a = on.pick(on.floats if (cross := on.chance(0.5)) else None, 1)
    labels = on.indices(a.shape.dims[:-1], a.shape[-1])
    return (on.graph.cross_entropy if cross else on.graph.pick)(a, labels)


def normed(on):
    kind = on.int(0, 3)
    a = on.pick([DType.F32, DType.F64] if kind == 0 else on.floats, 1)
    if kind == 0:
        return on.graph.normalize(a, on.one_of([1e-5, 1.0]))
    if kind == 1:
        return on.graph.layer_norm(a)
    # Of a named axis without elements there is no maximum at the run, and so no softmax.
    dims = enumerate(a.shape.dims)
    axis = on.one_of([axis for axis, dim in dims if isinstance(dim, int) or on.size(dim)])
    return (on.graph.softmax if kind == 2 else on.graph.log_softmax)(a, axis)


def dropped(on):
    a = on.pick(on.floats)
    made = on.graph.dropout(a, on.one_of([0.0, 0.25, 0.5, 0.999]))
    on.arrays["dropout_key"] = np.array([on.int(-1, 5), on.int(0, 9), on.int(0, 9)])
    return made


def size(on):
    return on.graph.size(on.one_of(on.dims), on.one_of([*on.floats, DType.I32, DType.I64]))


SMOOTH = [
    *(UnaryOp.NEG, UnaryOp.TANH, UnaryOp.SIGMOID, UnaryOp.GELU, UnaryOp.SIN, UnaryOp.COS),
    *(UnaryOp.RELU, UnaryOp.ABS),
]
GENTLE = [BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN]
GROWERS = [
    *(unary, unary, binary, binary, arithmetic, arithmetic, where, cast, matmul, reduction),
    *(reduction, argmax, shaped, shaped, sliced, unsliced, taken_apart, windows, convolution),
    *(concat, gather, scatter_add, one_hot, of_rows, normed, normed, dropped, size),
]


def random_graph(seed, most_nodes=14):
    """Any ops of any dtypes, some of them on long arrays and on special numbers."""
    rng = np.random.Generator(np.random.Philox(seed))
    dims = LARGE if rng.random() < 0.15 else SMALL
    return grown(Growing(rng, dims, 0.3 if rng.random() < 0.6 else 0.0), GROWERS, most_nodes)


def smooth_graph(seed, most_nodes=10):
    """F64 alone, of which no two numbers are equal by chance, and no steep ops."""
    rng = np.random.Generator(np.random.Philox(seed))
    on = Growing(rng, whole=0, floats=[DType.F64], others=[], unary=SMOOTH, binary=GENTLE)
    return grown(on, [one for one in GROWERS if one not in (argmax, cast, one_hot)], most_nodes)


def grown(on, growers, most_nodes):
    """`on` with values, without outputs yet."""
    on.bindings = {"n": on.int(0, 4), "m": on.int(0, 3)}
    for name, length in on.bindings.items():
        on.graph.input(f"binds {name}", [name], DType.BOOL)
        on.arrays[f"binds {name}"] = np.zeros(length, bool)
    for _ in range(on.int(2, most_nodes)):
        try:
            made = on.one_of(growers)(on)
        except (GraphError, ValueError):
            continue
        try:
            if np.prod(on.bound(made)) <= MOST_ELEMENTS:
                on.values.append(made)
        except GraphError:
            # A named dimension that is negative when it is bound.
            if on.chance(0.3):
                on.values.append(made)
    if not on.values:
        on.values.append(on.leaf(on.floats[-1], [2, 3]))
    return on


def arrays_of(on):
    """The array of each input and parameter; a leaf that was refused has none."""
    declared = {node.name for node in (*on.graph.inputs, *on.graph.params)}
    return {name: array for name, array in on.arrays.items() if name in declared}
