"""Dropout: a mask that is a function of its key, its stream and the element's place alone."""

import numpy as np
import pytest
from backends_support import FLOATS, assert_same_bits

from rlx.autodiff import grad_with_loss
from rlx.backends import Session, evaluate, numpy_dtype
from rlx.errors import GraphError
from rlx.ir import DROPOUT_KEY, DType, Graph

KEY = np.array([7, 3, 5], np.int64)


def dropped_ones(rate, shape=(3, 50), key=KEY, dtype=DType.F32, layers=1):
    """What so many layers of dropout leave of ones, each over the ones themselves."""
    graph = Graph("dropout")
    x = graph.input("x", shape, dtype)
    graph.set_outputs([graph.dropout(x, rate) for _ in range(layers)])
    inputs = {"x": np.ones(shape, numpy_dtype(dtype)), DROPOUT_KEY: np.array(key, np.int64)}
    found = Session("cpu").compile(graph).run(inputs)
    for one, expected in zip(found, evaluate(graph, inputs), strict=True):
        assert_same_bits(one, expected)
    return found


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_an_element_is_dropped_or_scaled(dtype, rate):
    (found,) = dropped_ones(rate, dtype=dtype)
    dropped, kept = np.unique(found.astype(np.float64))
    assert dropped == 0
    assert kept == pytest.approx(1 / (1 - rate), rel=1e-2 if found.itemsize == 2 else 1e-7)


def test_the_mean_stays():
    (found,) = dropped_ones(0.25, (100, 100))
    share = (found == 0).mean()
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / found.size)
    assert abs(found.mean() - 1) < 0.05


def test_every_part_of_the_key_and_every_layer_give_another_mask():
    whole = [dropped_ones(0.5, key=key)[0].tobytes() for key in ((7, 3, 5), (8, 3, 5), (7, 4, 5))]
    whole.append(dropped_ones(0.5, key=(7, 3, 6))[0].tobytes())
    whole += [one.tobytes() for one in dropped_ones(0.5, layers=2)]
    assert len(set(whole)) == 5  # the first layer of two is the first of all
    assert whole[0] == whole[4]


def test_a_mask_does_not_depend_on_what_follows_or_on_the_size_of_pieces():
    """More elements of one stream begin with the same ones; 200,000 take several pieces."""
    rng = np.random.Philox(key=np.array([7, 0], np.uint64), counter=[0, 3, 5, 0])
    words = rng.random_raw(100_000).astype("<u8").view("<u4")
    graph = Graph("long")
    key = graph.input("key", [3], DType.I64)
    graph.set_outputs([graph.keep_mask(key, [200_000], 2**31, 0)])
    (mask,) = Session("cpu").compile(graph).run({"key": KEY})
    np.testing.assert_array_equal(mask, np.where(words >= 2**31, 2, 0))


def test_a_negative_seed_drops_nothing_and_rate_0_is_no_node():
    (found,) = dropped_ones(0.5, key=(-1, 0, 0))
    assert (found == 1).all()
    graph = Graph("none")
    x = graph.input("x", [2])
    assert graph.dropout(x, 0.0) is x
    assert [node.name for node in graph.inputs] == ["x"]


def test_the_gradient_passes_where_nothing_was_dropped():
    graph = Graph("grad")
    w = graph.param("w", [4, 25])
    graph.set_outputs([graph.dropout(w, 0.5).sum()])
    step = Session("cpu").compile(grad_with_loss(graph, ["w"]))
    step.set_param("w", np.ones((4, 25), np.float32))
    loss, slope = step.run({DROPOUT_KEY: KEY, "d_output": np.float32(1)})
    (mask,) = dropped_ones(0.5, (4, 25))
    assert_same_bits(slope, mask)
    assert loss == mask.sum()


WRONG = {
    "all": (lambda g, x: g.dropout(x, 1.0), "rate is a number from 0 to below 1; got 1.0"),
    "nan": (lambda g, x: g.dropout(x, float("nan")), "rate is a number"),
    "text": (lambda g, x: g.dropout(x, "half"), "rate is a number"),
    "integers": (lambda g, x: g.dropout(x.cast(DType.I32), 0.5), "takes floats; got I32"),
    "key": (lambda g, x: g.keep_mask(x, [2], 1, 0), "takes a key I64"),
    "taken": (lambda g, x: g.input(DROPOUT_KEY, [2]), "is kept for dropout"),
    "parameter": (lambda g, x: g.param(DROPOUT_KEY, [3], DType.I64), "is kept for dropout"),
    "integer mask": (
        lambda g, x: g.keep_mask(g.input("k", [3], DType.I64), [2], 1, 0, DType.I32),
        "floating-point",
    ),
    "stream": (
        lambda g, x: g.keep_mask(g.input("k", [3], DType.I64), [2], 1, 2**32),
        "stream is an int from 0",
    ),
}


@pytest.mark.parametrize(("build", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_dropped_is_refused_where_it_is_built(build, message):
    graph = Graph("wrong")
    with pytest.raises(GraphError, match=message):
        build(graph, graph.input("x", [4]))
