"""Random graphs give the same bits however they are run: with anything in memory before, with
outputs and parameters of the caller anywhere, with other shapes in between, and step by step.

A longer search: `for seed in range(...): check_plans(seed)`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from random_graphs import arrays_of, random_graph
from test_backends_random_graphs import derived_of, first_wrong, loss_of

from rlx.backends import KERNELS, Session, numpy_dtype
from rlx.backends.arena import ALIGNMENT_BYTES
from rlx.backends.checks import bind_names
from rlx.backends.plan import _Planner
from rlx.errors import RlxError
from rlx.ir import DType, Op


class Case:
    """A random graph, or every other time the gradients of one, and its arrays by their use."""

    def __init__(self, seed):
        on = random_graph(seed)
        others = [on.one_of(on.values) for _ in range(on.int(0, 3))]
        on.graph.set_outputs([on.values[-1], *others])
        loss = loss_of(on, DType.F32) if seed % 2 else None
        derived = None if loss is None else derived_of(on.graph, [loss, *others])
        self.graph, self.rng = derived or on.graph, on.rng
        arrays = arrays_of(on) | ({"d_output": np.float32(1)} if derived else {})
        names = {node.name for node in self.graph.params}
        self.params = {name: one for name, one in arrays.items() if name in names}
        self.inputs = {name: one for name, one in arrays.items() if name not in names}

    def compiled(self, **options):
        return Session().compile(self.graph, **{"params": self.params, **options})


def check_plans(seed):
    """Whether it ran: one way, and then in all others."""
    case = Case(seed)
    try:
        expected = bits(case.compiled().run(case.inputs))
    except RlxError:
        return False
    for way in WAYS:
        assert bits(way(case)) == expected, way.__name__
    return True


def bits(arrays):
    """What must be equal; which NaN comes out depends on what a sum of two is written over."""
    return [(one.dtype, one.shape, _of_one_nan(one).tobytes()) for one in arrays]


def _of_one_nan(array):
    return array if array.dtype.kind in "iub" else np.where(array != array, np.nan, array)


def over_garbage(case):
    executable = case.compiled()
    arena = executable.bind(bind_names(case.graph, case.inputs))._arena
    arena[...] = case.rng.integers(0, 256, arena.shape, np.uint8)
    return executable.run(case.inputs)


def with_memory_of_the_caller(case):
    """Some outputs and all parameters lie there, and begin at any element."""
    nodes = [case.graph.nodes[one] for one in case.graph.outputs]
    fitting = [place for place, node in enumerate(nodes) if node.shape.is_static]
    owned = {
        place: anywhere(case, nodes[place].shape.bind({}), numpy_dtype(nodes[place].dtype))
        for place in fitting
        if case.rng.random() < 0.7
    }
    params = {}
    for name, array in case.params.items():
        params[name] = anywhere(case, array.shape, array.dtype)
        np.copyto(params[name], array)
    found = case.compiled(outputs=owned, params=params).run(case.inputs)
    assert all(found[place] is one for place, one in owned.items())
    assert bits(params.values()) == bits(case.params.values())
    return found


def anywhere(case, shape, dtype):
    """Ones, some elements behind an aligned address."""
    memory = np.ones(int(np.prod(shape)) + 2 * ALIGNMENT_BYTES, dtype)
    first = -memory.ctypes.data % ALIGNMENT_BYTES // dtype.itemsize + int(case.rng.integers(16))
    return memory[first : first + int(np.prod(shape))].reshape(shape)


def after_other_shapes(case):
    """The plan of these shapes is kept, while others come and go."""
    executable = case.compiled()
    first = executable.run(case.inputs)
    for more in (1, 2):
        bindings = bind_names(case.graph, case.inputs)
        larger = {name: size + more for name, size in bindings.items()}
        inputs = {
            node.name: np.resize(case.inputs[node.name], node.shape.bind(larger))
            for node in case.graph.inputs
        }
        assert run_or_refusal(executable, inputs) == run_or_refusal(case.compiled(), inputs)
    again = executable.run(case.inputs)
    assert bits(first) == bits(again)
    return again


def run_or_refusal(executable, inputs):
    try:
        return bits(executable.run(inputs))
    except RlxError as error:
        return str(error)


def by_steps(case):
    """The inputs filled once, and two steps: nothing writes over them, nor keeps what was."""
    bound = case.compiled().bind(bind_names(case.graph, case.inputs))
    for name, array in bound.inputs.items():
        np.copyto(array, case.inputs[name])
    before = bits(bound.inputs.values())
    bound.step()
    bound.step()
    assert bits(bound.inputs.values()) == before
    return bound.outputs


WAYS = (over_garbage, with_memory_of_the_caller, after_other_shapes, by_steps)


def _without_the_last(kernel):
    def build(emit, node, operands, out):
        kernel.build(emit, node, operands[:-1], out)

    return replace(kernel, build=build)


def test_memory_that_nobody_writes_is_found(monkeypatch):
    """A fresh arena is zeros, and the second of two runs has what the first left."""
    monkeypatch.setitem(KERNELS, Op.CONCAT, _without_the_last(KERNELS[Op.CONCAT]))
    monkeypatch.setattr(sys.modules[__name__], "WAYS", (over_garbage,))
    assert first_wrong(check_plans, range(100)) is not None


def test_a_result_over_an_input_is_found(monkeypatch):
    """Inputs are for one run alone, as a wrong plan has it; a second step then has other ones."""
    whole = _Planner.find_deaths

    def too_early(planner):
        whole(planner)
        for view in planner.inputs.values():
            storages = [[planner.values[one].storage for one in n.inputs] for n in planner.computed]
            times = [time for time, read in enumerate(storages) if view.storage in read]
            planner.deaths[view.storage] = max(times, default=planner.end)

    monkeypatch.setattr(_Planner, "find_deaths", too_early)
    monkeypatch.setattr(_Planner, "_is_temporary", lambda self, storage: storage in self.births)
    monkeypatch.setattr(sys.modules[__name__], "WAYS", (by_steps,))
    assert first_wrong(check_plans, range(100)) is not None


def test_random_graphs_have_the_same_bits_however_they_are_run():
    assert sum(check_plans(seed) for seed in range(120)) > 90
