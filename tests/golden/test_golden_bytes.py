"""Bytes and bits that must never change by accident: other releases and other ranks rely on them.

A change here is a change of format: raise the version beside it, and say so in the changelog.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rlx.autodiff import grad_with_loss
from rlx.dist import AdamW, DataRef, TrainSpec, WeightRef, params_digest
from rlx.dist.initial import initial_value
from rlx.ir import DType, Graph
from rlx.testing import run_ranks
from rlx.wire import encode_graph


def sample_graph() -> Graph:
    graph = Graph("golden")
    x = graph.input("x", ["batch", 2])
    label = graph.input("label", ["batch"], DType.I32)
    w = graph.param("w", [2, 3])
    graph.set_outputs([graph.cross_entropy(x @ w, label).mean()])
    return grad_with_loss(graph, [w])


def sample_spec() -> TrainSpec:
    return TrainSpec(
        graph=sample_graph(),
        params=[WeightRef("w", "init:he_uniform?seed=1")],
        data=[DataRef("x", "file:///x.npy", 2), DataRef("label", "file:///l.npy", 1)],
        lr_per_epoch=[0.1, 0.05],
        batch=4,
        optimizer=AdamW(),
        global_batch=8,
        shuffle_seed=3,
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_encoding_of_a_graph():
    assert (
        sha256(encode_graph(sample_graph()))
        == "88bec8f6a702b1fa0fcb3b4034c212f00daa9613edb5e4cf34d459baa5b231c2"
    )


def test_the_identity_of_a_graph():
    assert (
        sample_graph().digest()
        == "17da925808c432ee903f8e10e329e7f2e6629a44fcf6d377405e25498eee037d"
    )


def test_the_encoding_of_a_spec():
    assert (
        sample_spec().digest() == "55ed8eb40d0b511d3f21ad8e9e20c24b7663cd53337e28755bf996ad5b2c6c44"
    )


def test_the_head_of_an_encoded_spec():
    data = sample_spec().to_bytes()
    assert data[:8] == b"RLXW\x02\x00\x01\x00"
    assert int.from_bytes(data[8:16], "little") == len(data) - 16


def test_first_values_by_formula():
    uniform = initial_value("init:uniform?seed=5", "w", (3,), np.dtype(np.float64))
    assert uniform.tolist() == [0.09509026669474643, -0.04613965139812431, -0.012052241856671267]
    he = initial_value("init:he_uniform?seed=5", "w", (2, 2), np.dtype(np.float32))
    assert he.ravel().tolist() == [
        1.6470117568969727,
        -0.7991622090339661,
        -0.20875094830989838,
        -0.6073750853538513,
    ]


def test_the_digest_of_parameters():
    params = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float64)}
    assert (
        params_digest(params) == "0ed45c9ec0cbd5f4208acb053e2ef99c8e2a3b168dc02bd624dfae440c1d0d35"
    )
    swapped = {"w": params["w"].astype(">f4"), "b": params["b"]}
    assert params_digest(swapped) == params_digest(params)


def test_the_canonical_sum_of_five():
    def body(group):
        generator = np.random.Generator(np.random.Philox(group.rank))
        mine = (generator.random(1000) * 10.0 ** (group.rank - 2)).astype(np.float32)
        return sha256(group.all_reduce(mine).tobytes())

    assert set(run_ranks(5, body, transport="memory")) == {
        "1fcb8c5da5c416056a1dd0ce97247a245ccbaa1ce3e5e814aa76f0c566e029e9"
    }
