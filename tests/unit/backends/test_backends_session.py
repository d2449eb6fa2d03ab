"""What a user calls: compile, set_param, run, bind; and each thing that they may get wrong."""

import sys

import numpy as np
import pytest

from rlx.backends import Session
from rlx.errors import GraphError, UsageError
from rlx.ir import DType, Graph


def linear():
    graph = Graph("linear")
    x = graph.input("features", ["batch", 3])
    weight, bias = graph.param("weight", [3, 2]), graph.param("bias", [2])
    graph.set_outputs([x @ weight + bias])
    return graph


def ready(graph=None, **more):
    executable = Session("cpu").compile(graph or linear(), **more)
    executable.set_param("weight", np.ones((3, 2), np.float32))
    executable.set_param("bias", np.zeros(2, np.float32))
    return executable


def features(rows=4):
    return {"features": np.ones((rows, 3), np.float32)}


def test_an_unknown_device_is_refused():
    with pytest.raises(UsageError, match=r"numpy has no device 'gpu'; known: cpu$"):
        Session("gpu")


def test_a_graph_without_outputs_is_refused():
    with pytest.raises(UsageError, match="graph 'empty' has no outputs"):
        Session().compile(Graph("empty"))


def test_one_executable_serves_every_batch_size():
    executable = ready()
    for rows in (4, 1, 0, 7, 4):
        (result,) = executable.run(features(rows))
        np.testing.assert_array_equal(result, np.full((rows, 2), 3, np.float32))


def test_results_are_the_callers_own():
    executable = ready()
    (first,) = executable.run(features())
    executable.set_param("bias", np.ones(2, np.float32))
    (second,) = executable.run(features())
    np.testing.assert_array_equal(first, np.full((4, 2), 3))
    np.testing.assert_array_equal(second, np.full((4, 2), 4))
    second[:] = -1
    np.testing.assert_array_equal(executable.run(features())[0], np.full((4, 2), 4))


def test_a_run_before_set_param_names_the_unset_parameter():
    executable = Session().compile(linear())
    bound = executable.bind({"batch": 1})
    executable.set_param("weight", np.ones((3, 2), np.float32))
    for attempt in (lambda: executable.run(features()), bound.step):
        with pytest.raises(UsageError, match=r"parameter\(s\) 'bias'; call set_param") as caught:
            attempt()
        assert "weight" not in str(caught.value)
    executable.set_param("bias", np.ones(2, np.float32))
    bound.step()


def test_an_unknown_parameter_is_refused_with_the_nearest():
    for attempt in (
        lambda: ready().set_param("wieght", np.ones((3, 2), np.float32)),
        lambda: ready().param("wieght"),
        lambda: Session().compile(linear(), params={"wieght": np.ones((3, 2), np.float32)}),
    ):
        with pytest.raises(UsageError, match="no parameter 'wieght'; did you mean 'weight'"):
            attempt()


@pytest.mark.parametrize(
    ("array", "came"),
    [
        (np.ones((3, 2)), "float64"),
        (np.ones((3, 2), np.int32), "int32"),
        (np.ones((2, 3), np.float32), r"\[2, 3\]"),
        (np.ones(6, np.float32), r"\[6\]"),
        ([[1.0, 2.0]] * 3, "list"),
        (np.ma.ones((3, 2), np.float32), "MaskedArray"),
        (np.ones((3, 2), object), "object"),
    ],
    ids=str,
)
def test_a_parameter_is_never_coerced(array, came):
    executable = ready()
    with pytest.raises(UsageError, match=rf"'weight' takes (a numpy array )?F32\[3, 2\].*{came}"):
        executable.set_param("weight", array)
    np.testing.assert_array_equal(executable.param("weight"), np.ones((3, 2)))


def test_the_other_byte_order_is_read_right():
    other = ">" if sys.byteorder == "little" else "<"
    executable = ready()
    executable.set_param("weight", np.full((3, 2), 2, other + "f4"))
    (result,) = executable.run({"features": np.ones((1, 3), other + "f4")})
    np.testing.assert_array_equal(result, [[6, 6]])
    assert result.dtype.isnative


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"input 'features' is missing; it takes F32\[batch, 3\]"),
        ({**features(), "featurse": 1}, "no input 'featurse'; did you mean 'features'"),
        ({"features": np.ones((2, 3))}, r"'features' takes F32\[batch, 3\]; got float64\[2, 3\]"),
        ({"features": np.ones((2, 4), np.float32)}, r"takes F32\[batch, 3\].*got float32\[2, 4\]"),
        ({"features": np.ones(3, np.float32)}, r"takes F32\[batch, 3\]; got float32\[3\]"),
        ({"features": [[1.0, 2.0, 3.0]]}, "takes a numpy array.*got list"),
        ({"features": None}, "takes a numpy array.*got NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_input_is_named_with_what_was_expected(inputs, message):
    with pytest.raises(UsageError, match=message):
        ready().run(inputs)


def test_one_name_with_two_values_is_refused_with_both():
    graph = Graph("pair")
    a, b = graph.input("a", ["n", 2]), graph.input("b", ["n", 2])
    graph.set_outputs([a + b])
    with pytest.raises(UsageError, match="'n' is 3 by axis 0 of input 'a' and 4 by axis 0 of in"):
        Session().compile(graph).run(
            {"a": np.ones((3, 2), np.float32), "b": np.ones((4, 2), np.float32)}
        )


def test_an_input_of_a_composed_dimension_is_checked_against_the_names():
    graph = Graph("composed")
    flat, x = graph.input("flat", ["n*m"]), graph.input("x", ["n", "m"])
    graph.set_outputs([flat.reshape("n", "m") + x])
    executable = Session().compile(graph)
    x = np.ones((2, 3), np.float32)
    assert executable.run({"flat": np.ones(6, np.float32), "x": x})[0].shape == (2, 3)
    with pytest.raises(UsageError, match=r"'flat' takes F32\[m\*n\], here \[6\]; got float32\[5\]"):
        executable.run({"flat": np.ones(5, np.float32), "x": x})


def test_a_scalar_input_may_be_a_numpy_scalar():
    graph = Graph("seed")
    graph.set_outputs([graph.input("d", []) * 2.0])
    executable = Session().compile(graph)
    assert executable.run({"d": np.float32(1.5)})[0] == 3
    with pytest.raises(UsageError, match="got float"):
        executable.run({"d": 1.5})


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        ({}, "dimension.s. batch"),
        ({"batch": 2, "bacth": 2}, "no dimension 'bacth'; did you mean 'batch'"),
        ({"batch": -1}, "takes an int >= 0; got -1"),
        ({"batch": 2.0}, "takes an int >= 0; got 2.0"),
        ({"batch": True}, "takes an int >= 0; got True"),
    ],
    ids=str,
)
def test_wrong_bindings_are_refused(bindings, message):
    with pytest.raises(UsageError, match=message):
        ready().bind(bindings)


def test_a_slice_beyond_a_named_dimension_names_the_node():
    graph = Graph("head")
    x = graph.input("x", ["n"])
    graph.set_outputs([x[2:6]])
    executable = Session().compile(graph)
    np.testing.assert_array_equal(
        executable.run({"x": np.arange(6, dtype=np.float32)})[0], [2, 3, 4, 5]
    )
    with pytest.raises(GraphError, match=r"%1 = slice.*has shape \[3\]; the graph says \[4\]"):
        executable.bind({"n": 5})
    graph = Graph("tail")
    x = graph.input("x", ["n"])
    graph.set_outputs([x[2:]])
    with pytest.raises(GraphError, match=r"%1 = slice.*'n-2' is -1 with n=1"):
        Session().compile(graph).bind({"n": 1})


def test_changing_the_graph_after_compile_changes_nothing():
    graph = linear()
    executable = ready(graph)
    graph.set_outputs([graph["bias"]])
    assert executable.run(features())[0].shape == (4, 2)


def test_parameters_in_the_callers_memory_are_used_in_place():
    flat = np.zeros(8, np.float32)
    views = {"weight": flat[:6].reshape(3, 2), "bias": flat[6:]}
    executable = Session().compile(linear(), params=views)
    assert executable.param("weight") is views["weight"]
    np.testing.assert_array_equal(executable.run(features(1))[0], [[0, 0]])
    flat[:] = 1
    np.testing.assert_array_equal(executable.run(features(1))[0], [[4, 4]])
    executable.set_param("bias", np.full(2, 5, np.float32))
    np.testing.assert_array_equal(flat[6:], [5, 5])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 2)), "float64"),
        (np.ones((2, 3), np.float32).T, "side by side in row order"),
        (np.ones((3, 4), np.float32)[:, :2], "side by side in row order"),
        (np.ones((2, 3), np.float32), r"\[2, 3\]"),
        (np.ones((3, 2), np.dtype("f4").newbyteorder()), "byte order"),
        (np.zeros(25, np.uint8)[1:].view(np.float32).reshape(3, 2), "side by side"),
    ],
    ids=["dtype", "transposed", "strided", "shape", "byte order", "unaligned"],
)
def test_memory_that_does_not_fit_is_refused(array, message):
    with pytest.raises(UsageError, match=message):
        Session().compile(linear(), params={"weight": array})


def gradient_like():
    """Outputs of every kind: computed, reshaped, transposed, input, parameter, constant, twice."""
    graph = Graph("kinds")
    x, w = graph.input("x", [2, 3]), graph.param("w", [2, 3])
    y = x * w
    constant = graph.constant(np.float32([[7, 8]]))
    graph.set_outputs([y, y.reshape(3, 2), y.transpose(), x, w, constant, y, y[0], w.transpose()])
    return graph


def expected_of(x, w):
    y = x * w
    return [y, y.reshape(3, 2), y.T, x, w, np.float32([[7, 8]]), y, y[0], w.T]


@pytest.mark.parametrize("owned", [(), (0,), (1,), tuple(range(9)), (6, 3, 2), (4, 5, 8)], ids=str)
def test_outputs_of_every_kind_are_right_wherever_they_go(owned):
    graph = gradient_like()
    shapes = [graph.nodes[one].shape.dims for one in graph.outputs]
    memory = {index: np.full(shapes[index], np.nan, np.float32) for index in owned}
    executable = Session().compile(graph, outputs=memory)
    rng = np.random.default_rng(1)
    for _ in range(2):
        x, w = rng.random((2, 2, 3), np.float32)
        executable.set_param("w", w)
        results = executable.run({"x": x})
        for index, (result, expected) in enumerate(zip(results, expected_of(x, w), strict=True)):
            np.testing.assert_array_equal(result, expected)
            assert (result is memory.get(index)) == (index in owned)
            assert index in owned or result.flags.owndata
            result[...] = -1
        np.testing.assert_array_equal(executable.param("w"), w)


def test_results_of_a_bound_plan_are_static_and_apart_from_the_parameters():
    executable = Session().compile(gradient_like())
    executable.set_param("w", np.ones((2, 3), np.float32))
    bound = executable.bind({})
    before = list(bound.outputs)
    bound.inputs["x"][...] = 2
    bound.step()
    assert all(one is other for one, other in zip(before, bound.outputs, strict=True))
    for result in bound.outputs:
        assert not np.shares_memory(result, executable.param("w"))
        assert not np.shares_memory(result, bound.inputs["x"])


def test_outputs_land_in_a_flat_vector():
    flat = np.zeros(9, np.float32)
    graph = Graph("flat")
    x = graph.input("x", ["n", 3])
    graph.set_outputs([x.sum(), x.sum(0), (x + x).sum(0).reshape(1, 3)])
    outputs = {1: flat[:3], 2: flat[3:6].reshape(1, 3)}
    executable = Session().compile(graph, outputs=outputs)
    executable.run({"x": np.ones((5, 3), np.float32)})
    np.testing.assert_array_equal(flat, [5, 5, 5, 10, 10, 10, 0, 0, 0])
    executable.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(flat, [2, 2, 2, 4, 4, 4, 0, 0, 0])


def test_wrong_memory_for_outputs_is_refused():
    graph = Graph("out")
    x, w = graph.input("x", ["n"]), graph.param("w", [2])
    graph.set_outputs([x, w * 2.0, w * 3.0])
    vector = np.zeros(4, np.float32)
    frozen = np.zeros(2, np.float32)
    frozen.flags.writeable = False
    cases = [
        ({3: vector[:2]}, {}, "no output 3; the graph has 3"),
        ({-1: vector[:2]}, {}, "no output -1"),
        ({0: vector[:2]}, {}, r"output 0 has the shape \[n\]"),
        ({1: vector[:3]}, {}, r"output 1 takes F32\[2\].*float32\[3\]"),
        ({1: frozen}, {}, "output 1 is read-only"),
        ({1: vector[:2], 2: vector[1:3]}, {}, "output 2 and output 1 share memory"),
        ({1: vector[:2]}, {"w": vector[1:3]}, "'w' and output 1 share memory"),
        ({1: vector[1:3]}, {"w": vector[:2]}, "output 1 and parameter 'w' share memory"),
    ]
    for outputs, params, message in cases:
        with pytest.raises(UsageError, match=message):
            Session().compile(graph, params=params, outputs=outputs)
    Session().compile(graph, params={"w": vector[:2]}, outputs={1: vector[2:]})


def test_bf16_without_ml_dtypes_says_what_to_install(monkeypatch):
    graph = Graph("half")
    graph.set_outputs([graph.input("x", [2], DType.BF16) * 2.0])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match=r"pip install rlx\[bf16\]"):
        Session().compile(graph).bind({})
