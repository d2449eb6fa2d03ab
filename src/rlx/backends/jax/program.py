"""A graph that XLA compiled for one binding of its names, and those that a session has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy

from rlx.backends.dtypes import Array, numpy_dtype
from rlx.backends.jax import arrays as arrays
from rlx.backends.jax import elementwise as elementwise
from rlx.backends.jax.table import RULES, IndexCheck, Trace, Traced
from rlx.backends.kernels.indexing import out_of_range
from rlx.backends.plan import last_source, make_plan
from rlx.backends.simplify import simplified
from rlx.errors import UsageError
from rlx.ir import Graph, Node, Op

_OPTIONS = {
    # Else a value that the graph rounds to half precision and widens again is never rounded.
    "xla_allow_excess_precision": False,
    # Else NaN may be lost on the way through a maximum.
    "xla_cpu_enable_fast_min_max": False,
    "xla_cpu_enable_fast_math": False,
    # A product's bits do not depend on how many cores there are; lanes are what uses more.
    "xla_cpu_multi_thread_eigen": False,
    # Else a GPU adds what falls into one place in the order in which its threads come.
    "xla_gpu_deterministic_ops": True,
}


def first_device(platform: str) -> Any:
    """jax's first device of `platform`; `UsageError` where it has none."""
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:
        raise UsageError(
            f"jax finds no device {platform!r}: {' '.join(str(error).split())}"
        ) from None


def fed_nodes(graph: Graph) -> list[Node]:
    """The nodes whose values come from outside, in the order in which a program takes them."""
    needed = graph.needed()
    return [
        node
        for node in graph.nodes
        if node.id in needed and node.op in (Op.INPUT, Op.PARAM, Op.KEEP_MASK)
    ]


class Program:
    """What XLA made of one graph for one binding. Threads may run it at once.

    `fed` are the nodes whose values it takes. Making it raises what numpy's plan of the same graph
    and binding raises.
    """

    def __init__(self, graph: Graph, bindings: Mapping[str, int], device: Any) -> None:
        # Planned to be checked: what has no result for such shapes is refused in the same words.
        make_plan(simplified(graph), bindings, constants={})
        self._graph = graph
        self.bindings = dict(bindings)
        self.fed = fed_nodes(graph)
        self._checks: list[IndexCheck] = []
        place = jax.sharding.SingleDeviceSharding(device)
        types = [
            jax.ShapeDtypeStruct(node.shape.bind(bindings), numpy_dtype(node.dtype), sharding=place)
            for node in self.fed
        ]
        with jax.enable_x64(True):
            stated = jax.jit(self._stated, compiler_options=_OPTIONS)
            self._compiled = stated.lower(*types).compile()

    def run(self, fed: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute from the values of `fed_nodes`, and copy the results into `outputs`.

        Raises `DataError` for an index out of range, and then no output has changed.
        """
        with jax.enable_x64(True):
            found, results = self._compiled(*fed)
        if self._checks:
            self._refuse_wrong_indices(numpy.asarray(found))
        for output, result in zip(outputs, results, strict=True):
            numpy.copyto(output, numpy.asarray(result))

    def costs(self) -> dict[str, int]:
        """The bytes of what goes in, of what comes out, and of all between."""
        memory = self._compiled.memory_analysis()
        return {
            "argument_bytes": memory.argument_size_in_bytes,
            "result_bytes": memory.output_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
        }

    def describe(self) -> str:
        """XLA's own text of what it will run."""
        text: str = self._compiled.as_text()
        return text

    def _stated(self, *fed: Traced) -> tuple[Traced, list[Traced]]:
        """The graph in jax's terms: what the index checks found, and the outputs."""
        by_id = {node.id: value for node, value in zip(self.fed, fed, strict=True)}
        trace = Trace(self.bindings, by_id)
        values: dict[int, Traced] = {}
        needed = self._graph.needed()
        for node in self._graph.nodes:
            if node.id in needed:
                values[node.id] = _checked(trace, node, [values[one] for one in node.inputs])
        self._checks = trace.checks
        found = jnp.stack(trace.found) if trace.found else jnp.zeros((0, 2), jnp.int64)
        return found, [values[one] for one in self._graph.outputs]

    def _refuse_wrong_indices(self, found: Array) -> None:
        for check, (place, index) in zip(self._checks, found.tolist(), strict=True):
            if place >= 0:
                where = tuple(int(axis) for axis in numpy.unravel_index(place, check.shape))
                source = last_source(self._graph, check.node)
                raise out_of_range(check.node, source, index, where, check.limit)


def _checked(trace: Trace, node: Node, operands: Sequence[Traced]) -> Traced:
    """The node's value; a rule that gives another dtype or shape is wrong."""
    value = RULES[node.op](trace, node, operands)
    expected = (numpy_dtype(node.dtype), trace.shape(node))
    assert (value.dtype, value.shape) == expected, f"{node}: {value.dtype}{value.shape}"
    return value


class Programs:
    """What is compiled for one device: equal graphs with equal bindings once, while any is in use.

    Any thread may ask; one that asks for what another compiles waits for it.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._lock = Lock()
        self._made: WeakValueDictionary[object, Program] = WeakValueDictionary()

    def program(self, graph: Graph, digest: str, bindings: Mapping[str, int]) -> Program:
        """The program of `graph`, whose digest is `digest`, for all its names' values."""
        key = (digest, tuple(sorted(bindings.items())))
        with self._lock:
            program = self._made.get(key)
            if program is None:
                program = self._made[key] = Program(graph, bindings, self._device)
            return program
