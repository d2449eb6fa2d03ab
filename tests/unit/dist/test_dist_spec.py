"""A spec is checked when it is made, and its bytes are the only ones that mean it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.autodiff import grad_with_loss
from rlx.dist import Adam, AdamW, DataRef, Sgd, TrainSpec, WeightRef
from rlx.errors import Malformed, Truncated, UsageError, WireError
from rlx.ir import DType, Graph
from rlx.wire import WireKind, replaced
from rlx.wire.envelope import seal


def graph_of(batch="batch", dtype=DType.F32) -> Graph:
    graph = Graph("regression")
    x = graph.input("x", [batch, 3], dtype)
    y = graph.input("y", [batch, 1], dtype)
    w = graph.param("w", [3, 1], dtype)
    b = graph.param("b", [1], dtype)
    error = x @ w + b - y
    graph.set_outputs([(error * error).mean()])
    return grad_with_loss(graph, ["w", "b"])


PARAMS = [WeightRef("w", "init:zeros"), WeightRef("b", "file:///b.bin")]
DATA = [DataRef("x", "file:///x.bin", 3), DataRef("y", "file:///y.bin", 1)]


def spec_of(**changes) -> TrainSpec:
    fields = {
        "graph": graph_of(),
        "params": PARAMS,
        "data": DATA,
        "lr_per_epoch": [0.1, 1],
        "batch": 4,
    }
    return TrainSpec(**{**fields, **changes})


def test_bytes_come_back_as_the_same_spec():
    spec = spec_of(optimizer=AdamW(weight_decay=0.1), shuffle_seed=2**64 - 1, global_batch=12)
    again = TrainSpec.from_bytes(spec.to_bytes())
    assert again.to_bytes() == spec.to_bytes()
    assert again.digest() == spec.digest()
    assert again.optimizer == spec.optimizer
    assert again.lr_per_epoch == (0.1, 1.0)
    assert again.graph.digest() == spec.graph.digest()


def test_a_list_and_a_tuple_make_the_same_spec():
    assert spec_of(params=tuple(PARAMS)).digest() == spec_of(params=list(PARAMS)).digest()
    assert spec_of(lr_per_epoch=(0.1, 1)).digest() == spec_of(lr_per_epoch=[0.1, 1.0]).digest()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"graph": "a graph"}, "graph is a Graph"),
        ({"params": []}, "at least one WeightRef"),
        ({"params": PARAMS[:1]}, "parameter 'b' of the graph has no reference"),
        ({"params": [*PARAMS, WeightRef("c", "init:ones")]}, "no parameter 'c'"),
        ({"params": [*PARAMS, PARAMS[0]]}, "'w' has more than one reference"),
        ({"params": PARAMS[::-1]}, "as the gradient of 'b'"),
        ({"data": DATA[:1]}, "input 'y' of the graph has no reference"),
        ({"data": [DataRef("x", "u", 4), DATA[1]]}, "3 elements a row, not 4"),
        ({"data": [DataRef("x", "u", 3, 0, 4), DATA[1]]}, "shards of all inputs"),
        ({"data": [DataRef("x", "u", 3, 0, 4), DataRef("y", "u", 1, 0, 5)]}, "one length"),
        ({"lr_per_epoch": []}, "lr_per_epoch has"),
        ({"lr_per_epoch": [float("nan")]}, "finite and >= 0; got nan"),
        ({"lr_per_epoch": [-0.1]}, "finite and >= 0; got -0.1"),
        ({"lr_per_epoch": ["0.1"]}, "is a number; got '0.1'"),
        ({"lr_per_epoch": 0.1}, "a list of numbers"),
        ({"batch": 0}, "batch is an int from 1"),
        ({"batch": True}, "batch is an int"),
        ({"batch": 4.0}, "batch is an int"),
        ({"global_batch": 0}, "global_batch is an int from 1"),
        ({"grad_start": 2}, "has 3 outputs"),
        ({"loss_index": 1}, "without axes"),
        ({"weight_index": 7}, "weight_index 7"),
        ({"weight_index": 1}, "a number without axes"),
        ({"seed_input": "x"}, "without axes for the seed"),
        ({"seed_input": "q"}, "has no input 'q'"),
        ({"momentum": 1.0}, "below 1"),
        ({"momentum": 0.9, "optimizer": Adam()}, "momentum is for Sgd"),
        ({"optimizer": "adam"}, "Sgd, Adam or AdamW"),
        ({"shuffle_seed": -1}, "shuffle_seed is an int"),
        ({"shuffle_seed": 2**64}, "shuffle_seed is an int"),
        ({"device": "gpu"}, "numpy has no device 'gpu'; known: cpu"),
        ({"device": "cuda", "backend": "jax"}, "jax has no device 'cuda'; known: cpu, gpu"),
        ({"backend": "torch"}, "no backend 'torch'; known: numpy, jax"),
        ({"lanes": 0}, "lanes is an int"),
        ({"push_data": 1}, "push_data is a bool"),
        ({"graph": graph_of(5)}, "a microbatch has 4 rows"),
        ({"graph": graph_of(4).copy()}, None),
    ],
)
def test_a_wrong_spec_is_refused_when_it_is_made(changes, text):
    if text is None:
        assert spec_of(**changes).batch == 4
        return
    with pytest.raises(UsageError, match=text):
        spec_of(**changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightRef("", "u"),
        lambda: WeightRef("w", ""),
        lambda: WeightRef("w", "u", packed=1),
        lambda: DataRef("x", "u", 0),
        lambda: DataRef("x", "u", 3, 0),
        lambda: DataRef("x", "u", 3, -1, 4),
        lambda: Adam(beta1=1.0),
        lambda: Adam(epsilon=0),
        lambda: AdamW(weight_decay=-1),
    ],
)
def test_a_wrong_reference_is_refused(make):
    with pytest.raises(UsageError):
        make()


def test_shards_and_a_global_batch_exclude_each_other():
    shards = [DataRef("x", "u", 3, 0, 8), DataRef("y", "u", 1, 0, 8)]
    assert spec_of(data=shards).has_shards
    with pytest.raises(UsageError, match="global_batch is for data without shards"):
        spec_of(data=shards, global_batch=8)


def test_a_decoded_spec_is_checked_like_a_built_one():
    spec = spec_of()
    body = msgspec.msgpack.decode(spec.to_bytes()[16:])

    def refused(**changes):
        data = seal(WireKind.TRAIN_SPEC, 1, msgspec.msgpack.encode({**body, **changes}))
        with pytest.raises(WireError) as caught:
            TrainSpec.from_bytes(data)
        return str(caught.value)

    assert "batch is an int from 1" in refused(batch=0)
    assert "finite" in refused(lr_per_epoch=[float("inf")])
    assert "batch" in refused(batch="4")
    assert "unknown field `extra`" in refused(extra=1)
    assert "numpy has no device 'gpu'" in refused(device="gpu")
    assert "Invalid value 'rmsprop'" in refused(optimizer={"type": "rmsprop"})
    assert "an envelope has 16 bytes; got 8" in refused(graph=b"no graph")
    del body["batch"]
    assert "missing required field `batch`" in refused()


def test_fields_in_another_order_are_not_canonical():
    body = msgspec.msgpack.decode(spec_of().to_bytes()[16:])
    turned = dict(reversed(list(body.items())))
    with pytest.raises(Malformed, match="not the canonical encoding"):
        TrainSpec.from_bytes(seal(WireKind.TRAIN_SPEC, 1, msgspec.msgpack.encode(turned)))


def test_truncated_and_trailing_bytes_are_refused():
    data = spec_of().to_bytes()
    for length in range(0, len(data), 7):
        with pytest.raises(Truncated):
            TrainSpec.from_bytes(data[:length])
    with pytest.raises(Malformed, match="follow"):
        TrainSpec.from_bytes(data + b"x")


def test_any_changed_byte_is_refused_or_gives_another_digest():
    spec = spec_of()
    data = spec.to_bytes()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            assert TrainSpec.from_bytes(changed).digest() != spec.digest()
        except WireError:
            continue


@given(st.binary(max_size=80))
@settings(max_examples=200)
def test_random_bodies_raise_nothing_but_wire_errors(body):
    with pytest.raises(WireError):
        TrainSpec.from_bytes(seal(WireKind.TRAIN_SPEC, 1, body))


def test_replacing_a_field_checks_again():
    spec = spec_of()
    assert replaced(spec, lanes=3).lanes == 3
    with pytest.raises(UsageError):
        replaced(spec, lanes=0)
    assert isinstance(replaced(spec, optimizer=Sgd()).optimizer, Sgd)
