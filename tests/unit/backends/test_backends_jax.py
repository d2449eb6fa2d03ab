"""Every op by jax against the oracle."""

import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("jax")

import backends_support
import jax
import jax.numpy as jnp
from backends_support import FLOATS, INTEGERS, assert_close, assert_same_bits, numbers, run_op

from rlx.backends import Session, fingerprint, numpy_dtype
from rlx.backends.jax.program import RULES
from rlx.errors import DataError, GraphError, UsageError
from rlx.ir import CATALOGUE, BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp

NUMBERS = [*FLOATS, *INTEGERS]
SIGNED = [dtype for dtype in NUMBERS if dtype is not DType.U8]


@pytest.fixture(autouse=True)
def by_jax(monkeypatch):
    """What `run_op` compares with the oracle."""
    monkeypatch.setattr(backends_support, "BACKEND", "jax")


def unary(op):
    return lambda graph, x: graph.unary(op, x)


def binary(op):
    return lambda graph, a, b: graph.binary(op, a, b)


def reduced(op):
    return lambda graph, x: graph.concat(
        [graph.reduce(op, x, axes).reshape(-1) for axes in ([0], [1], [0, 1], [])], 0
    )


def indexed(build):
    """The other operand is indices of rows that repeat."""
    return lambda graph, x: build(graph, x, graph.constant(np.array([2, 0, 2, 1])))


MOVED = [*NUMBERS, DType.BOOL]
OPS = {
    Op.INPUT: (lambda g, x: x, MOVED, 1),
    Op.CONSTANT: (lambda g, x: x + g.scalar(3, x.dtype), NUMBERS, 1),
    Op.SIZE: (lambda g, x: x + g.size(x.shape[0], x.dtype), NUMBERS, 1),
    **{op.value: (unary(op), FLOATS, 1) for op in UnaryOp if op is not UnaryOp.NOT},
    Op.NEG: (unary(UnaryOp.NEG), SIGNED, 1),
    Op.ABS: (unary(UnaryOp.ABS), SIGNED, 1),
    Op.RELU: (unary(UnaryOp.RELU), NUMBERS, 1),
    Op.NOT: (unary(UnaryOp.NOT), [DType.BOOL], 1),
    **{op.value: (binary(op), NUMBERS, 2) for op in BinaryOp},
    Op.DIV: (binary(BinaryOp.DIV), FLOATS, 2),
    Op.POW: (binary(BinaryOp.POW), FLOATS, 2),
    Op.AND: (binary(BinaryOp.AND), [DType.BOOL], 2),
    Op.OR: (binary(BinaryOp.OR), [DType.BOOL], 2),
    Op.WHERE: (lambda g, a, b: g.where(a.equal(b), a, b), MOVED, 2),
    Op.CAST: (
        lambda g, x: g.concat([x.cast(one).cast(DType.F64) for one in DType], 0),
        [*INTEGERS, DType.BOOL],
        1,
    ),
    Op.MATMUL: (lambda g, a, b: a @ b.transpose(), FLOATS, 2),
    **{op.value: (reduced(op), NUMBERS, 1) for op in ReduceOp},
    Op.ARGMAX: (lambda g, x: g.argmax(x, 1), NUMBERS, 1),
    Op.RESHAPE: (lambda g, x: x.reshape(5, -1), MOVED, 1),
    Op.TRANSPOSE: (lambda g, x: x.transpose(), MOVED, 1),
    Op.BROADCAST: (lambda g, x: g.broadcast_to(x, [2, 4, 5]), MOVED, 1),
    Op.SLICE: (lambda g, x: x[1:, ::-2], MOVED, 1),
    Op.UNSLICE: (
        lambda g, x: g.unslice(x, [5, 12], [1, 10], [None, 0], [1, -2]),
        MOVED,
        1,
    ),
    Op.UNFOLD: (lambda g, x: g.unfold(x, (0, 1), (2, 3), (1, 2)), MOVED, 1),
    Op.FOLD: (
        lambda g, x: g.concat(
            [
                g.fold(x.reshape(2, 2, 5), (1,), (6,), (1,)).reshape(-1),
                g.fold(x.reshape(2, 5, 2), (1,), (11,), (2,)).reshape(-1),
                g.fold(x.reshape(10, 2), (0,), (11,), (1,)).reshape(-1),
            ],
            0,
        ),
        NUMBERS,
        1,
    ),
    Op.CONCAT: (lambda g, a, b: g.concat([a, b, a], 1), MOVED, 2),
    Op.GATHER: (indexed(lambda g, x, i: g.gather(x, i)), MOVED, 1),
    Op.SCATTER_ADD: (indexed(lambda g, x, i: g.scatter_add(x, i, 3)), NUMBERS, 1),
    Op.ONE_HOT: (
        lambda g, x: g.concat(
            [g.one_hot(g.argmax(x, 1), 6, one).cast(DType.F32) for one in DType], 0
        ),
        [DType.F32],
        1,
    ),
    Op.PICK: (indexed(lambda g, x, i: g.pick(x, i)), MOVED, 1),
    Op.SOFTMAX: (lambda g, x: g.concat([g.softmax(x, 0), g.softmax(x, 1)], 0), FLOATS, 1),
    Op.LOG_SOFTMAX: (
        lambda g, x: g.concat([g.log_softmax(x, 0), g.log_softmax(x, 1)], 0),
        FLOATS,
        1,
    ),
    Op.CROSS_ENTROPY: (indexed(lambda g, x, i: g.cross_entropy(x, i)), FLOATS, 1),
    Op.NORMALIZE: (lambda g, x: g.layer_norm(x), [DType.F32, DType.F64], 1),
}
"""What states the op, for which dtypes, of how many operands [4, 5]."""

EXACT = {Op.NEG, Op.ABS, Op.RELU, Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAX, Op.MIN, Op.WHERE}


def test_every_op_has_a_rule_and_is_tested_here():
    assert set(RULES) == set(CATALOGUE)
    assert set(OPS) == set(CATALOGUE) - {Op.PARAM, Op.KEEP_MASK}  # tested further down


@pytest.mark.parametrize("op", OPS, ids=str)
def test_an_op_by_jax_is_the_oracles(op):
    build, dtypes, count = OPS[op]
    for dtype in dtypes:
        rng = np.random.default_rng(1)
        low = 0.25 if op in (Op.LOG, Op.SQRT, Op.POW, Op.DIV, Op.REDUCE_PROD) else -2.0
        found, oracle = run_op(build, *(numbers(rng, (4, 5), dtype, low, 2) for _ in range(count)))
        if op in EXACT:
            assert_same_bits(found, oracle)
        else:
            # 16 units at most: of a sum of 20 terms, or of GELU's last factor, which cancels.
            assert_close(found, oracle, 64 if op is Op.GELU else 16)


def test_a_param_is_read_at_each_run():
    graph = Graph("read")
    x, w = graph.input("x", ["n"]), graph.param("w", [1])
    graph.set_outputs([x * w, w])
    memory, result = np.ones(1, np.float32), np.zeros(1, np.float32)
    executable = Session(backend="jax").compile(graph, params={"w": memory}, outputs={1: result})
    bound = executable.bind({"n": 2})
    bound.inputs["x"][:] = [3, 4]
    for value in (1, 2):
        memory[:] = value
        bound.step()
        np.testing.assert_array_equal(bound.outputs[0], [3 * value, 4 * value])
        assert bound.outputs[1] is result
        assert result == value


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_an_infinite_or_large_float_is_cast_as_numpy_does_it(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 300, -1.5, 2.0**31, 2.0**63, 1e30], np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(numpy_dtype(dtype))
    assert_same_bits(run_op(lambda g, v: v.cast(dtype), x)[0], expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype):
    x = np.array([np.iinfo(numpy_dtype(dtype)).max], numpy_dtype(dtype))
    found, oracle = run_op(lambda g, v: g.concat([v + v, v * v, v + 1], 0), x)
    assert_same_bits(found, oracle)


def test_the_first_of_equal_maxima_is_taken_and_nan_before_all():
    x = np.array([[1, 3, 3], [2, np.nan, np.nan], [0, -0.0, 0]], np.float32)
    np.testing.assert_array_equal(run_op(lambda g, v: g.argmax(v, 1), x)[0], [1, 1, 0])


def test_halves_are_rounded_between_ops():
    """XLA would keep what a chain of ops on halves computes in F32, unless told otherwise."""
    x = np.full(4, 0.1, np.float16)
    found, oracle = run_op(lambda g, v: (v * 3.0 + v) * 7.0 - v, x)
    assert_same_bits(found, oracle)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_batch_is_bound_also_an_empty_one(rows):
    graph = Graph("empty")
    x, labels = graph.input("x", ["n", 3]), graph.input("labels", ["n"], DType.I64)
    loss = graph.cross_entropy(x, labels)
    graph.set_outputs([loss, loss.sum(), x.sum(0), graph.argmax(x, 1)])
    inputs = {
        "x": np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32),
        "labels": np.arange(rows) % 3,
    }
    for found, expected in zip(
        Session(backend="jax").compile(graph).run(inputs),
        Session().compile(graph).run(inputs),
        strict=True,
    ):
        assert_close(found, expected)


def wrong_index(kind, rows):
    graph = Graph("wrong")
    x, i = graph.input("x", [rows, 4]), graph.input("i", [2, "n"], DType.I64)
    made = {
        "gather": lambda: graph.gather(x, i),
        "scatter_add": lambda: graph.scatter_add(graph.one_hot(i * 0, 4), i, rows),
        "one_hot": lambda: graph.one_hot(i, rows),
        "pick": lambda: graph.pick(graph.one_hot(i * 0, rows), i),
        "cross_entropy": lambda: graph.cross_entropy(graph.one_hot(i * 0, rows), i),
    }
    graph.set_outputs([made[kind]()])
    return graph


@pytest.mark.parametrize("index", [-1, 3, 2**40])
@pytest.mark.parametrize("kind", ["gather", "scatter_add", "one_hot", "pick", "cross_entropy"])
def test_an_index_out_of_range_is_refused_in_numpys_words(kind, index):
    graph = wrong_index(kind, 3)
    inputs = {"x": np.zeros((3, 4), np.float32), "i": np.array([[0, 1], [2, index]])}
    said = []
    for backend in ("numpy", "jax"):
        executable = Session(backend=backend).compile(graph)
        with pytest.raises(DataError, match=rf"index {index} at \[1, 1\]") as caught:
            executable.run(inputs)
        said.append(str(caught.value))
        executable.run({**inputs, "i": np.array([[0, 1], [2, 0]])})
    assert said[0] == said[1]


def test_there_are_no_rows_to_gather_from():
    graph = wrong_index("gather", 0)
    executable = Session(backend="jax").compile(graph)
    with pytest.raises(DataError, match="there are no rows"):
        executable.run({"x": np.zeros((0, 4), np.float32), "i": np.zeros((2, 1), np.int64)})


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda g, x: x.max(0), UsageError),
        (lambda g, x: g.argmax(x, 0), UsageError),
        (lambda g, x: x[3:], GraphError),
    ],
    ids=["max", "argmax", "slice"],
)
def test_shapes_without_a_result_are_refused_in_numpys_words(build, error):
    graph = Graph("none")
    graph.set_outputs([build(graph, graph.input("x", ["n", 2]))])
    said = []
    for backend in ("numpy", "jax"):
        with pytest.raises(error) as caught:
            Session(backend=backend).compile(graph).bind({"n": 0})
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_drops_the_units_that_numpy_drops(dtype):
    graph = Graph("dropped")
    x = graph.input("x", ["n", 50], dtype)
    graph.set_outputs([graph.dropout(graph.dropout(x, 0.5), 0.25)])
    key = np.array([7, 3, 1])
    inputs = {"x": np.ones((40, 50), numpy_dtype(dtype)), "dropout_key": key}
    sessions = [Session(), Session(backend="jax")]
    first, second = (one.compile(graph).run(inputs)[0] for one in sessions)
    assert_same_bits(first, second)
    assert 0.3 < np.mean(first != 0) < 0.45
    inputs["dropout_key"] = key + 1
    assert (sessions[1].compile(graph).run(inputs)[0] != second).any()


def test_executables_of_one_session_share_what_was_compiled_and_no_memory():
    graph = Graph("shared")
    x = graph.input("x", ["n"])
    graph.set_outputs([x * 2.0])
    session = Session(backend="jax")
    first, second = (session.compile(graph).bind({"n": 3}) for _ in range(2))
    assert first._program is second._program
    results = {}

    def run(place, bound):
        for value in range(200):
            bound.inputs["x"][:] = value + place
            bound.step()
            results[place] = (
                results.get(place, True) and (bound.outputs[0] == 2 * (value + place)).all()
            )

    threads = [threading.Thread(target=run, args=one) for one in enumerate((first, second))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == {0: True, 1: True}


def test_64_bits_do_not_leak():
    graph = Graph("wide")
    x = graph.input("x", ["n"], DType.F64)
    graph.set_outputs([x + 1e-12])
    (found,) = Session(backend="jax").compile(graph).run({"x": np.ones(1)})
    assert found.dtype == np.float64
    assert found[0] - 1 == pytest.approx(1e-12, rel=1e-3)
    assert jnp.ones(1, float).dtype == np.float32
    assert jnp.arange(3).dtype == np.int32


def test_a_description_is_xlas_text_and_costs_are_bytes():
    graph = Graph("described")
    graph.set_outputs([graph.input("x", ["n"]) + 1.0])
    bound = Session(backend="jax").compile(graph).bind({"n": 6})
    assert "HloModule" in bound.describe()
    assert bound.costs()["result_bytes"] >= 24


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="no backend 'torch'; known: numpy, jax"):
        Session(backend="torch")
    with pytest.raises(UsageError, match="jax has no device 'cuda'; known: cpu, gpu"):
        Session("cuda", "jax")


def test_a_device_that_jax_does_not_find_is_refused(monkeypatch):
    def devices(platform):
        raise RuntimeError(f"Unknown backend: {platform!r}\nrequested")

    monkeypatch.setattr(jax, "devices", devices)
    for refused in (Session, lambda device, backend: fingerprint(backend, device)):
        with pytest.raises(UsageError, match="jax finds no device 'gpu': Unknown backend: 'gpu' r"):
            refused("gpu", "jax")


WITHOUT = """
import sys
from rlx.backends import Session
from rlx.errors import UsageError
Session()
assert "jax" not in sys.modules, "numpy needs no jax"
sys.modules["jax"] = None
try:
    Session(backend="jax")
except UsageError as error:
    print(error)
"""


def test_jax_loads_when_asked_for_and_its_lack_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True
    )
    assert "pip install 'rlx[jax]'" in done.stdout
