"""Graphs that ask for too much, and Python that asks a value for what it is not."""

from __future__ import annotations

import time

import msgspec
import numpy as np
import pytest

from rlx.errors import GraphError, Malformed
from rlx.ir import DType, Graph
from rlx.wire import WireKind, decode_graph
from rlx.wire.envelope import seal

NAMES = "+".join(sorted(f"n{number}" for number in range(50)))


def test_a_product_of_many_sums_is_refused_before_it_is_expanded():
    body = ["g", [[1, [], ["x", [NAMES] * 8, 3]], [100, [0], [[1]]]], []]
    begun = time.monotonic()
    with pytest.raises(Malformed, match="too complicated"):
        decode_graph(seal(WireKind.GRAPH, 1, msgspec.msgpack.encode(body)))
    assert time.monotonic() - begun < 2
    with pytest.raises(GraphError, match="too complicated"):
        Graph("g").input("x", [NAMES] * 8).reshape(-1)


@pytest.mark.parametrize("dims", [[2**70], [2**40, 2**30], [f"{2**70}*n"]])
def test_sizes_that_no_machine_counts_are_refused(dims):
    with pytest.raises(GraphError):
        Graph("g").input("x", dims)


def test_an_array_beside_a_value_is_a_constant():
    x = Graph("g").input("x", [2, 3])
    product = np.ones(3, np.float32) * x
    assert (product.dtype, product.shape.dims) == (DType.F32, (2, 3))


def test_a_value_is_no_sequence():
    graph = Graph("g")
    x = graph.input("x", [2, 3])
    before = len(graph.nodes)
    for use in (lambda: list(x), lambda: 3 in x, lambda: sum(x)):
        with pytest.raises(TypeError):
            use()
    assert len(graph.nodes) == before


def test_numpy_scalars_are_constants_of_their_dtype():
    graph = Graph("g")
    x = graph.input("x", [3])
    assert (x * np.float32(2)).dtype is DType.F32
    with pytest.raises(GraphError, match="one dtype"):
        x * np.int32(2)


def test_a_masked_array_is_no_constant():
    with pytest.raises(GraphError, match="got MaskedArray"):
        Graph("g").constant(np.ma.masked_array([1.0, 2.0], [0, 1]))
