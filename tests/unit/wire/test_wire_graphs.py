"""Graphs off the wire are the graphs that went on it, and nothing else is accepted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.autodiff import grad_with_loss
from rlx.errors import LimitExceeded, Malformed, Truncated, UnknownVersion, WireError
from rlx.ir import CATALOGUE, BinaryOp, DType, Graph, Op
from rlx.wire import DTYPE_CODES, OP_CODES, WireKind, decode_graph, encode_graph
from rlx.wire.envelope import seal


def sample() -> Graph:
    """A graph with every kind of attribute in it."""
    graph = Graph("sample é")
    x = graph.input("x", ["batch", 6])
    labels = graph.input("labels", ["batch"], DType.I64)
    w = graph.param("w", [6, 4])
    scores = x @ w + graph.constant(np.arange(4, dtype=np.float32))
    tail = graph.concat([scores[:, 1:3], scores[:, ::-1]], 1)
    graph.set_outputs([graph.cross_entropy(tail, labels).mean() * 0.5, graph.argmax(scores, 1)])
    return grad_with_loss(graph, [w])


def body_of(*nodes, name="g", outputs=()) -> bytes:
    return seal(WireKind.GRAPH, 1, msgspec.msgpack.encode([name, list(nodes), list(outputs)]))


def test_every_op_and_dtype_has_a_code_of_its_own():
    assert set(OP_CODES) == set(Op) == set(CATALOGUE)
    assert len(set(OP_CODES.values())) == len(OP_CODES)
    assert set(DTYPE_CODES) == set(DType)
    assert len(set(DTYPE_CODES.values())) == len(DTYPE_CODES)


def test_a_graph_comes_back_as_it_went():
    graph = sample()
    again = decode_graph(encode_graph(graph))
    assert again.describe() == graph.describe()
    assert again.digest() == graph.digest()
    assert encode_graph(again) == encode_graph(graph)


def test_another_graph_has_another_digest():
    graph, other = Graph("a"), Graph("a")
    x, y = graph.input("x", [3]), other.input("x", [3])
    graph.set_outputs([x + 1.0])
    other.set_outputs([y + 1.5])
    assert graph.digest() != other.digest()
    assert encode_graph(graph) != encode_graph(other)


def test_any_changed_byte_is_refused_or_gives_another_digest():
    graph = sample()
    data = encode_graph(graph)
    refused = 0
    for place in range(len(data)):
        for value in (0, 255, data[place] ^ 1, data[place] ^ 128):
            if value == data[place]:
                continue
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                assert decode_graph(changed).digest() != graph.digest()
            except WireError:
                refused += 1
    assert refused > len(data)


def test_every_prefix_is_truncated_and_a_suffix_is_trailing():
    data = encode_graph(sample())
    for length in range(len(data)):
        with pytest.raises(Truncated):
            decode_graph(data[:length])
    with pytest.raises(Malformed, match="1 bytes follow"):
        decode_graph(data + b"\0")


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"RLXX" + bytes(12), Malformed, "nothing that rlx wrote"),
        (seal(WireKind.TRAIN_SPEC, 1, b"\xc0"), Malformed, "expected an encoded GRAPH"),
        (seal(WireKind.GRAPH, 9, b"\xc0"), UnknownVersion, "version 9; this release reads 1"),
        (seal(WireKind.GRAPH, 1, b"\xc0"), Malformed, "expected list"),
        (seal(WireKind.GRAPH, 1, b"\xdd\xff\xff\xff\xff"), Truncated, "4294967295 values"),
        (seal(WireKind.GRAPH, 1, b"\xc6\xff\xff\xff\xff"), Truncated, "announced"),
        (seal(WireKind.GRAPH, 1, b"\x91" * 50 + b"\xc0"), LimitExceeded, "nest deeper"),
        (seal(WireKind.GRAPH, 1, b"\xc1"), Malformed, "begins no value"),
        (seal(WireKind.GRAPH, 1, b"\xc0\xc0"), Malformed, "follow the value"),
        (body_of((999, (), ())), Malformed, "no op with code 999"),
        (body_of((1, (), ("x", (3,)))), Malformed, "has 3 attributes"),
        (body_of((1, (), ("x", (3,), 77))), Malformed, "no dtype with code 77"),
        (body_of((1, (), ("x", (-1,), 3))), Malformed, "not negative"),
        (body_of((1, (), ("x", ("b+",), 3))), Malformed, "is not a dimension"),
        (body_of((1, (), ("x", ("b*a",), 3))), Malformed, "dims is"),
        (body_of((1, (), ("x", (True,), 3))), Malformed, "dims is a tuple"),
        (body_of((1, (), ("", (3,), 3))), Malformed, "name is"),
        (body_of((10, (0,), ())), Malformed, "not all nodes"),
        (body_of((1, (), ("x", (3,), 3)), (80, (0,), ((1,), False))), Malformed, "below 1"),
        (body_of((1, (), ("x", (3,), 3)), outputs=(5,)), Malformed, "no node 5"),
        (body_of((3, (), (b"123", (1,), 3))), Malformed, "needs 4 bytes, has 3"),
        (body_of(name="a\nb"), Malformed, "printable"),
    ],
)
def test_what_is_no_graph_is_refused_by_name(data, error, text):
    with pytest.raises(error, match=text):
        decode_graph(data)


def test_a_length_over_the_limit_is_refused_before_its_body():
    with pytest.raises(LimitExceeded, match="over the limit of 10"):
        decode_graph(encode_graph(sample()), limit_bytes=10)


def test_an_encoding_that_is_not_canonical_is_refused():
    graph = Graph("g")
    graph.input("x", [3])
    plain = msgspec.msgpack.encode(["g", [[1, [], ["x", [3], 3]]], []])
    assert seal(WireKind.GRAPH, 1, plain) == encode_graph(graph)
    wide = plain.replace(b"\x91\x03", b"\x91\xcc\x03")
    with pytest.raises(Malformed, match="not the canonical encoding"):
        decode_graph(seal(WireKind.GRAPH, 1, wide))


@given(st.binary(max_size=64))
def test_random_bodies_raise_nothing_but_wire_errors(body):
    with pytest.raises(WireError):
        decode_graph(seal(WireKind.GRAPH, 1, body))


@given(st.data())
def test_random_small_graphs_round_trip(data):
    graph = Graph("random")
    values = [graph.input("x", ["n", 2]), graph.param("p", [2])]
    for _ in range(data.draw(st.integers(1, 8))):
        op = data.draw(st.sampled_from([BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MAX]))
        left = data.draw(st.sampled_from(values))
        right = data.draw(st.sampled_from(values))
        values.append(graph.binary(op, left, right))
    graph.set_outputs([values[-1]])
    assert decode_graph(encode_graph(graph)).digest() == graph.digest()
