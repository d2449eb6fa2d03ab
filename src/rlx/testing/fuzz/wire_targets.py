"""Targets of the fuzzer in `wire`: graphs, specs and facts."""

from __future__ import annotations

import numpy as np

from rlx.autodiff import grad_with_loss
from rlx.dist import Adam, DataRef, EvaluationSpec, TrainSpec, WeightRef
from rlx.dist.agreement import Facts as RunFacts
from rlx.ir import BinaryOp, DType, Graph, ReduceOp, UnaryOp
from rlx.testing.fuzz.mutate import mutate_sealed
from rlx.testing.fuzz.target import Target, hold
from rlx.wire import WireKind, decode_graph, decode_record, encode_graph, encode_record

_FACTS_LIMIT_BYTES = 1 << 16


def _run_graph(data: bytes) -> str:
    hold(encode_graph(decode_graph(data)) == data, "only canonical bytes are a graph")
    return "accepted"


def _run_train_spec(data: bytes) -> str:
    hold(TrainSpec.from_bytes(data).to_bytes() == data, "only canonical bytes are a spec")
    return "accepted"


def _run_evaluation(data: bytes) -> str:
    made = EvaluationSpec.from_bytes(data)
    hold(made.to_bytes() == data, "only canonical bytes are an evaluation")
    return "accepted"


def _run_facts(data: bytes) -> str:
    made = decode_record(data, RunFacts, WireKind.FACTS, 1, limit_bytes=_FACTS_LIMIT_BYTES)
    hold(encode_record(made, WireKind.FACTS, 1) == data, "only canonical bytes are facts")
    return "accepted"


def _classifier() -> Graph:
    graph = Graph("classifier")
    x = graph.input("x", ["batch", 4])
    label = graph.input("label", ["batch"], DType.I32)
    w = graph.param("w", [4, 3])
    hidden = graph.concat([x[:, 1:3], x[:, ::2]], 1) @ w
    graph.set_outputs([graph.cross_entropy(hidden, label).mean()])
    return graph


def _everything() -> Graph:
    """Most kinds of op, and every kind of attribute."""
    graph = Graph("everything")
    x = graph.input("x", ["batch", 2, 3])
    number = graph.input("n", ["batch"], DType.I64)
    table = graph.param("table", [5, 3])
    rows = graph.gather(table, number)
    flat = graph.reshape(x, ["batch", 6])
    mask = graph.binary(BinaryOp.LT, flat, graph.constant(np.full((1, 6), 0.5, np.float32)))
    chosen = graph.where(mask, graph.unary(UnaryOp.TANH, flat), flat * 2)
    back = graph.transpose(graph.reshape(chosen, ["batch", 3, 2]), [0, 2, 1])
    low = graph.reduce(ReduceOp.MAX, back, [1], keepdims=True)
    wide = graph.broadcast_to(low, ["batch", 2, 3])
    soft = graph.log_softmax(graph.softmax(wide, 2), -1)
    best = graph.argmax(soft, 1).cast(DType.F64)
    hot = graph.one_hot(number, 5)
    count = graph.size("batch")
    graph.set_outputs([soft, best, hot, count, graph.scatter_add(rows, number, 5)])
    return graph


def _graphs() -> list[bytes]:
    made = [_classifier(), grad_with_loss(_classifier(), ["w"]), _everything(), Graph("empty")]
    return [encode_graph(one) for one in made]


def _data() -> list[DataRef]:
    return [DataRef("x", "file:///x", 4), DataRef("label", "file:///label", 1)]


def _train_specs() -> list[bytes]:
    graph = grad_with_loss(_classifier(), ["w"])
    params = [WeightRef("w", "init:zeros")]
    plain = TrainSpec(graph, params, _data(), [0.1] * 3, 4, momentum=0.9, shuffle_seed=7)
    shards = [DataRef(one.input, one.uri, one.elem, 0, 8) for one in _data()]
    other = TrainSpec(graph, params, shards, [1e-3], 4, optimizer=Adam(), lanes=2)
    return [plain.to_bytes(), other.to_bytes()]


def _evaluations() -> list[bytes]:
    return [EvaluationSpec(_classifier(), ["loss"], _data(), 4).to_bytes()]


def _facts() -> list[bytes]:
    made = [RunFacts({"batch": "00ff" * 4}, {"numpy": "2.1"}, 1437), RunFacts({}, {}, 0)]
    return [encode_record(one, WireKind.FACTS, 1) for one in made]


WIRE_TARGETS = (
    Target("graph", _run_graph, _graphs, mutate=mutate_sealed),
    Target("train-spec", _run_train_spec, _train_specs, mutate=mutate_sealed),
    Target("evaluation", _run_evaluation, _evaluations, mutate=mutate_sealed),
    Target("facts", _run_facts, _facts, mutate=mutate_sealed),
)
