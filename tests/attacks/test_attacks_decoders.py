"""Whatever bytes come, a decoder gives a value that encodes to them, or a `WireError`."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from rlx.autodiff import grad_with_loss
from rlx.dist import DataRef, EvaluationSpec, TrainSpec, WeightRef
from rlx.errors import WireError
from rlx.ir import DType, Graph
from rlx.net.notices import Notice
from rlx.wire import WireKind, decode_graph, encode_graph

ROUNDS = 4000


def sample_graph() -> Graph:
    graph = Graph("attacked")
    x = graph.input("x", ["batch", 4])
    label = graph.input("label", ["batch"], DType.I32)
    w = graph.param("w", [4, 3])
    hidden = graph.concat([x[:, 1:3], x[:, ::2]], 1) @ w
    graph.set_outputs([graph.cross_entropy(hidden, label).mean()])
    return graph


def sample_spec() -> TrainSpec:
    return TrainSpec(
        graph=grad_with_loss(sample_graph(), ["w"]),
        params=[WeightRef("w", "init:zeros")],
        data=[DataRef("x", "file:///x", 4), DataRef("label", "file:///l", 1)],
        lr_per_epoch=[0.1] * 3,
        batch=4,
    )


def sample_evaluation() -> EvaluationSpec:
    return EvaluationSpec(
        graph=sample_graph(),
        names=["loss"],
        data=[DataRef("x", "file:///x", 4), DataRef("label", "file:///l", 1)],
        batch=4,
    )


DECODERS = {
    "graph": (encode_graph(sample_graph()), decode_graph, encode_graph),
    "spec": (sample_spec().to_bytes(), TrainSpec.from_bytes, TrainSpec.to_bytes),
    "evaluation": (
        sample_evaluation().to_bytes(),
        EvaluationSpec.from_bytes,
        EvaluationSpec.to_bytes,
    ),
}


def mutated(data: bytes, generator: np.random.Generator) -> bytes:
    """`data` with a few bytes changed, cut out, doubled, or taken from elsewhere in it."""
    changed = bytearray(data)
    for _ in range(generator.integers(1, 4)):
        place = int(generator.integers(len(changed)))
        length = int(generator.integers(1, 9))
        match generator.integers(5):
            case 0:
                changed[place] = int(generator.integers(256))
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[place : place + length]
            case 3:
                source = int(generator.integers(len(changed)))
                changed[place : place + length] = changed[source : source + length]
            case 4:
                changed[place] = generator.choice([0, 0x7F, 0x80, 0x90, 0xC0, 0xDD, 0xDF, 0xFF])
    return bytes(changed)


def with_its_length(data: bytes) -> bytes:
    """The envelope says how long the body is, so that the decoder looks further."""
    return data[:8] + struct.pack("<Q", max(0, len(data) - 16)) + data[16:]


@pytest.mark.parametrize("kind", DECODERS)
def test_mutated_bytes_are_refused_or_mean_exactly_what_they_say(kind):
    whole, decode, encode = DECODERS[kind]
    generator = np.random.Generator(np.random.Philox(len(kind)))
    refused = 0
    for number in range(ROUNDS):
        data = mutated(whole, generator)
        data = with_its_length(data) if number % 4 and len(data) >= 16 else data
        try:
            assert encode(decode(data)) == data
        except WireError:
            refused += 1
    assert refused > ROUNDS / 2


@pytest.mark.parametrize("kind", DECODERS)
def test_random_bytes_are_refused(kind):
    _, decode, _ = DECODERS[kind]
    generator = np.random.Generator(np.random.Philox(7))
    for number in range(ROUNDS):
        body = generator.bytes(int(generator.integers(0, 200)))
        head = struct.pack("<4sHHQ", b"RLXW", number % 5, 1, len(body))
        with pytest.raises(WireError):
            decode(head + body)
    assert {one.value for one in WireKind} < set(range(5))


def test_notices_of_failure_are_refused_or_read():
    whole = Notice.of_reason(1, ValueError("bad lr")).encode()
    generator = np.random.Generator(np.random.Philox(3))
    refused = 0
    for _ in range(ROUNDS):
        try:
            Notice.decode(mutated(whole, generator), 3)
        except WireError:
            refused += 1
    assert refused > ROUNDS / 4
