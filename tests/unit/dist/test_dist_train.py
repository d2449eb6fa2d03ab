"""Training gives the exact mean over the rows, and the same bits at every world size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_support import linear_graph, linear_spec, rows_of, sharded, train_on

from rlx.autodiff import grad_with_loss
from rlx.dist import (
    Adam,
    AdamW,
    DataRef,
    TrainSpec,
    WeightRef,
    mean_reduce,
    params_digest,
    run_train,
    serve_trainer_here,
    ship_train,
)
from rlx.errors import DataError, DisagreementError, RemoteError, UsageError
from rlx.ir import DType, Graph
from rlx.testing import run_ranks


def digests(results) -> set[str]:
    return {params_digest(params) for _, params in results}


def reference(rows, epochs_lr, step_rows, order_of, momentum=0.0):
    """Plain float64 gradient descent on the mean square, written out by hand."""
    x, y = (rows[name].astype(np.float64) for name in ("x", "y"))
    w, b = np.zeros((x.shape[1], 1)), np.zeros(1)
    velocity = [np.zeros_like(w), np.zeros_like(b)]
    losses = []
    for epoch, lr in enumerate(epochs_lr):
        order = order_of(len(x), epoch)
        total = 0.0
        for start in range(0, len(x), step_rows):
            part = order[start : start + step_rows]
            error = x[part] @ w + b - y[part]
            total += float((error * error).sum())
            gradients = [2 * x[part].T @ error / len(part), 2 * error.sum(0) / len(part)]
            velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
            w, b = w - lr * velocity[0], b - lr * velocity[1]
        losses.append(total / len(x))
    return w, b, losses


ONES = [WeightRef("w", "init:ones"), WeightRef("b", "init:ones")]
ZEROS = [WeightRef("w", "init:zeros"), WeightRef("b", "init:zeros")]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("count", [48, 50])
def test_training_is_gradient_descent_on_the_exact_mean(count, momentum):
    """50 rows divide into neither 16-row steps nor 4-row microbatches."""
    from rlx.dist.rows import epoch_order

    rows = rows_of(count, dtype=np.float64)
    spec = linear_spec(
        graph=linear_graph(DType.F64), params=ZEROS, momentum=momentum, lr_per_epoch=[0.05] * 3
    )
    metrics, params = run_train(spec, resolve=rows.__getitem__)
    w, b, losses = reference(
        rows, [0.05] * 3, 16, lambda size, epoch: epoch_order(size, 7, epoch), momentum
    )
    assert np.allclose(params["w"], w, rtol=0, atol=1e-12)
    assert np.allclose(params["b"], b, rtol=0, atol=1e-12)
    assert np.allclose(metrics.losses, losses, rtol=1e-12)
    assert metrics.samples == 3 * count


@pytest.mark.parametrize("count", [1, 15, 16, 50])
def test_every_world_size_and_lane_count_gives_the_same_bits(count):
    rows = rows_of(count)
    metrics, params = run_train(linear_spec(), resolve=rows.__getitem__)
    alone = params_digest(params)
    for world_size in (1, 2, 3, 5):
        for lanes in (1, 2, 3):
            results = train_on(world_size, linear_spec(lanes=lanes), rows)
            assert digests(results) == {alone}, (world_size, lanes)
            assert {one.losses for one, _ in results} == {metrics.losses}
            assert {one.samples for one, _ in results} == {3 * count}


@given(
    count=st.integers(1, 40),
    batch=st.integers(1, 7),
    step_rows=st.integers(1, 20),
    world_size=st.integers(2, 4),
)
@settings(max_examples=25, deadline=None)
def test_random_sizes_give_the_bits_of_one_rank(count, batch, step_rows, world_size):
    rows = rows_of(count)
    spec = linear_spec(batch=batch, global_batch=step_rows, lr_per_epoch=[0.1])
    alone = params_digest(run_train(spec, resolve=rows.__getitem__)[1])
    assert digests(train_on(world_size, spec, rows)) == {alone}


def test_another_row_on_one_rank_changes_the_digest():
    rows, changed = rows_of(48), rows_of(48)
    changed["y"] = changed["y"] + np.float32(1e-3)
    spec = linear_spec()
    usual = digests(train_on(2, spec, rows))

    def body(group):
        return run_train(spec, group, resolve=(changed if group.rank else rows).__getitem__)

    assert digests(run_ranks(2, body, transport="memory")) != usual


SHARDS = [(0, 5), (5, 11), (16, 0)]


def test_uneven_shards_use_every_row_once_with_its_exact_weight():
    rows = rows_of(16, dtype=np.float64)
    changes = {"graph": linear_graph(DType.F64), "params": ZEROS, "lr_per_epoch": [0.1]}
    results = train_on(3, lambda rank: sharded(changes, SHARDS, rank), rows)
    assert len(digests(results)) == 1
    assert all(metrics.samples == 16 for metrics, _ in results)
    order = [0, 1, 2, 3, 5, 6, 7, 8, 4, 9, 10, 11, 12, 13, 14, 15]

    def step_rows_of(x):
        return [order[:8], order[8:13], order[13:]]

    x, y = rows["x"], rows["y"]
    w, b = np.zeros((3, 1)), np.zeros(1)
    for part in step_rows_of(x):
        error = x[part] @ w + b - y[part]
        w, b = w - 0.1 * 2 * x[part].T @ error / len(part), b - 0.1 * 2 * error.sum(0) / len(part)
    assert np.allclose(results[0][1]["w"], w, rtol=0, atol=1e-12)
    assert np.allclose(results[0][1]["b"], b, rtol=0, atol=1e-12)


def test_a_rank_with_fewer_rows_does_not_stop_the_others():
    """Five rows, one a microbatch, two ranks: three steps against two."""
    rows = rows_of(5)
    results = train_on(
        2, lambda rank: sharded({"batch": 1, "lr_per_epoch": [0.1]}, [(0, 3), (3, 2)], rank), rows
    )
    assert len(digests(results)) == 1
    assert [metrics.samples for metrics, _ in results] == [5, 5]


def scaled_product_spec(**changes) -> TrainSpec:
    """loss = mean(w * x), whose gradient is the mean of x."""
    graph = Graph("product")
    x = graph.input("x", ["batch", 1], DType.F64)
    w = graph.param("w", [1], DType.F64)
    graph.set_outputs([(x * w).mean()])
    fields = {
        "graph": grad_with_loss(graph, ["w"]),
        "params": [WeightRef("w", "init:zeros")],
        "data": [DataRef("x", "x", 1)],
        "lr_per_epoch": [1.0],
        "batch": 4,
    }
    return TrainSpec(**{**fields, **changes})


def test_a_small_shard_does_not_get_too_much_weight():
    rows = {"x": np.array([[1.0], [2.0], [3.0], [10.0]])}
    bounds = [(0, 3), (3, 1)]
    results = train_on(
        2, lambda rank: scaled_product_spec(data=[DataRef("x", "x", 1, *bounds[rank])]), rows
    )
    assert [params["w"].tolist() for _, params in results] == [[-4.0], [-4.0]]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("batch", [8, 4, 2])
def test_the_gradient_does_not_grow_with_the_ranks(world_size, batch):
    rows = {"x": np.arange(8.0).reshape(8, 1)}
    spec = scaled_product_spec(batch=batch, global_batch=8)
    for _, params in train_on(world_size, spec, rows):
        assert params["w"].tolist() == [-3.5]


def weighted_spec(**changes) -> TrainSpec:
    """The mean over unmasked tokens of w * x, with the count of them as the weight."""
    graph = Graph("masked")
    x = graph.input("x", ["batch", 3], DType.F64)
    mask = graph.input("mask", ["batch", 3], DType.F64)
    w = graph.param("w", [1], DType.F64)
    count = mask.sum()
    graph.set_outputs([(x * mask * w).sum() / count, count])
    fields = {
        "graph": grad_with_loss(graph, ["w"]),
        "params": [WeightRef("w", "init:ones")],
        "data": [DataRef("x", "x", 3), DataRef("mask", "mask", 3)],
        "lr_per_epoch": [1.0],
        "batch": 1,
        "global_batch": 2,
        "weight_index": 2,
    }
    return TrainSpec(**{**fields, **changes})


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_tokens_count_the_same_in_every_microbatch(world_size):
    """Sums 6 over 3 tokens and 4 over 1: the loss is 10 / 4, not the mean of means, 3."""
    rows = {
        "x": np.array([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]]),
        "mask": np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
    }
    together = train_on(1, weighted_spec(batch=2), rows)[0]
    for metrics, params in train_on(world_size, weighted_spec(), rows):
        assert metrics.first_loss == 2.5
        assert abs(params["w"] - together[1]["w"]) <= 1e-12
        assert params["w"].tolist() == [1 - 2.5]


def test_a_step_without_weight_changes_nothing_and_is_reported():
    rows = {"x": np.ones((4, 3)), "mask": np.array([[1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3])}
    seen = []
    results = run_ranks(
        2,
        lambda group: run_train(
            weighted_spec(), group, resolve=rows.__getitem__, observer=seen.append
        ),
        transport="memory",
    )
    for metrics, params in results:
        assert metrics.empty_steps == 1
        assert params["w"].tolist() == [0.0]  # the first step's gradient is that of its one row
        assert metrics.losses == (1.0,)
    assert sorted(one.is_empty for one in seen) == [False, False, True, True]


@pytest.mark.parametrize("optimizer", [Adam(), AdamW(weight_decay=0.1)])
def test_adam_follows_its_paper(optimizer):
    rows = {"x": np.array([[1.0], [2.0]])}
    spec = scaled_product_spec(
        batch=1, global_batch=1, lr_per_epoch=[0.1, 0.1], optimizer=optimizer
    )
    _, params = run_train(spec, resolve=rows.__getitem__)
    w = m = v = 0.0
    decay = getattr(optimizer, "weight_decay", 0.0)
    for t, gradient in enumerate([1.0, 2.0, 1.0, 2.0], 1):
        w -= 0.1 * decay * w
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        w -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    assert abs(params["w"][0] - w) < 1e-12


@pytest.mark.parametrize("optimizer", [Adam(), AdamW()])
def test_every_optimizer_gives_the_same_bits_at_every_world_size(optimizer):
    rows = rows_of(50)
    spec = linear_spec(optimizer=optimizer)
    alone = params_digest(run_train(spec, resolve=rows.__getitem__)[1])
    assert digests(train_on(3, spec, rows)) == {alone}


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_half_precision_trains_a_float32_master_with_the_same_bits(dtype):
    pytest.importorskip("ml_dtypes")
    from rlx.backends import numpy_dtype

    half = numpy_dtype(dtype)
    rows = {name: value.astype(half) for name, value in rows_of(50).items()}
    spec = linear_spec(graph=linear_graph(dtype))
    metrics, params = run_train(spec, resolve=rows.__getitem__)
    assert params["w"].dtype == half
    assert metrics.losses[-1] < metrics.losses[0]
    assert digests(train_on(3, spec, rows)) == {params_digest(params)}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("shards", [False, True])
def test_pushed_data_gives_the_bits_of_read_data(world_size, shards):
    rows = rows_of(17)
    bounds = [(0, 4), (4, 7), (11, 6)][:world_size]

    def spec_for(rank, **changes):
        return sharded(changes, bounds, rank) if shards else linear_spec(**changes)

    read = train_on(world_size, spec_for, rows)

    def body(group):
        def only_here(uri):
            assert group.rank == 0, "only the coordinator reads"
            return rows[uri]

        return run_train(spec_for(group.rank, push_data=True), group, resolve=only_here)

    pushed = run_ranks(world_size, body, transport="memory")
    assert digests(pushed) == digests(read)


def test_a_worker_without_model_code_serves():
    rows = rows_of(32)
    spec = linear_spec()

    def body(group):
        if group.rank:
            return serve_trainer_here(group, resolve=rows.__getitem__).params
        for rank in range(1, group.world_size):
            ship_train(group, rank, spec)
        return run_train(spec, group, resolve=rows.__getitem__)[1]

    results = run_ranks(3, body, transport="memory")
    assert len({params_digest(params) for params in results}) == 1


def test_mean_reduce_replaces_the_canonical_mean():
    rows = rows_of(32)

    def body(group):
        spec = sharded({}, [(0, 16), (16, 16)], group.rank)
        return run_train(
            spec,
            group,
            resolve=rows.__getitem__,
            reduce=lambda flat: mean_reduce(group, flat),
        )

    results = run_ranks(2, body, transport="memory")
    assert len(digests(results)) == 1
    canonical = train_on(2, lambda rank: sharded({}, [(0, 16), (16, 16)], rank), rows)
    assert np.allclose(results[0][1]["w"], canonical[0][1]["w"], atol=1e-6)


def test_without_a_reduce_the_shards_disagree():
    rows = rows_of(32)

    def body(group):
        return run_train(
            sharded({}, [(0, 16), (16, 16)], group.rank),
            group,
            resolve=rows.__getitem__,
            reduce=lambda flat: flat,
        )

    assert len(digests(run_ranks(2, body, transport="memory"))) == 2


def test_a_reduce_of_the_wrong_shape_is_refused():
    with pytest.raises(UsageError, match="flat vector of 4 elements"):
        run_train(linear_spec(), resolve=rows_of(4).__getitem__, reduce=lambda flat: flat[:2])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lr_per_epoch": [0.2]}, "lr_per_epoch"),
        ({"batch": 8}, "batch"),
        ({"shuffle_seed": 8}, "shuffle_seed"),
        ({"momentum": 0.5}, "momentum"),
        ({"graph": linear_graph(DType.F64)}, "graph"),
        (
            {"params": [WeightRef("w", "init:ones"), WeightRef("b", "init:ones")]},
            "first parameters",
        ),
    ],
)
def test_ranks_with_different_specs_all_refuse_and_name_the_field(changes, field):
    rows = rows_of(32)

    def body(group):
        spec = linear_spec(**(changes if group.rank == 2 else {}))
        with pytest.raises(DisagreementError) as caught:
            run_train(spec, group, resolve=rows.__getitem__)
        return str(caught.value)

    for message in run_ranks(3, body, transport="memory"):
        assert field in message
        assert "rank 0, 1" in message
        assert "rank 2" in message


def test_ranks_with_different_numbers_of_rows_all_refuse():
    def body(group):
        with pytest.raises(DisagreementError, match="number of rows") as caught:
            run_train(linear_spec(), group, resolve=rows_of(32 + group.rank).__getitem__)
        return str(caught.value)

    assert all("rank 0: 32; rank 1: 33" in text for text in run_ranks(2, body, transport="memory"))


def test_a_failure_on_one_rank_reaches_the_others_with_its_reason():
    rows = rows_of(32)

    def body(group):
        def resolve(uri):
            if group.rank == 1:
                raise DataError("no such file")
            return rows[uri]

        try:
            run_train(linear_spec(), group, resolve=resolve)
        except (DataError, RemoteError) as error:
            return error
        raise AssertionError("both ranks fail")

    first, second = run_ranks(2, body, transport="memory")
    assert isinstance(first, RemoteError)
    assert (first.rank, first.kind, first.message) == (1, "DataError", "input 'x': no such file")
    assert isinstance(second, DataError)


def test_a_fixed_batch_that_does_not_divide_the_rows_is_refused_before_the_first_step():
    graph = Graph("fixed")
    x = graph.input("x", [4, 3])
    w = graph.param("w", [3, 1])
    graph.set_outputs([(x @ w).mean()])
    spec = TrainSpec(
        graph=grad_with_loss(graph, ["w"]),
        params=[WeightRef("w", "init:zeros")],
        data=[DataRef("x", "x", 3)],
        lr_per_epoch=[0.1],
        batch=4,
    )
    assert run_train(spec, resolve=rows_of(8).__getitem__)[0].samples == 8
    seen = []
    with pytest.raises(UsageError, match="give axis 0 of its inputs a name"):
        run_train(spec, resolve=rows_of(9).__getitem__, observer=seen.append)
    assert not seen


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (np.zeros((4, 3), np.float64), r"holds float64\[4, 3\]; expected float32 rows of 3"),
        (np.zeros((4, 2), np.float32), "expected float32 rows of 3 elements"),
        (bytes(50), "50 bytes, which is no whole number of rows of 3 float32"),
        (np.zeros((5, 3), np.float32), "different numbers of rows: 'x' has 5, 'y' has 4"),
    ],
)
def test_rows_that_are_not_what_the_spec_says_are_refused(content, text):
    rows = {"x": content, "y": np.zeros((4, 1), np.float32)}
    with pytest.raises(DataError, match=text):
        run_train(linear_spec(), resolve=rows.__getitem__)


def test_a_shard_beyond_the_rows_is_refused():
    with pytest.raises(DataError, match="rows 4 to 9, but x has 8 rows"):
        run_train(sharded({}, [(4, 6)], 0), resolve=rows_of(8).__getitem__)


def test_raw_and_packed_first_parameters():
    rows = {**rows_of(8), "w": np.array([1, 2, 3], "<f4").tobytes(), "b": bytes(4)}
    rows["all"] = np.array([1, 2, 3, 0], "<f4").tobytes()
    apart = linear_spec(params=[WeightRef("w", "w"), WeightRef("b", "b")])
    packed = linear_spec(
        params=[WeightRef("w", "all", packed=True), WeightRef("b", "all", packed=True)]
    )
    results = [run_train(spec, resolve=rows.__getitem__)[1] for spec in (apart, packed)]
    assert params_digest(results[0]) == params_digest(results[1])
    with pytest.raises(DataError, match=r"has 4 bytes; .* needs 12"):
        run_train(
            linear_spec(params=[WeightRef("w", "b"), WeightRef("b", "b")]), resolve=rows.__getitem__
        )


def test_the_observer_sees_every_step():
    seen = []
    metrics, _ = run_train(linear_spec(), resolve=rows_of(50).__getitem__, observer=seen.append)
    assert [(one.epoch, one.step) for one in seen] == [
        (epoch, step) for epoch in (1, 2, 3) for step in (1, 2, 3, 4)
    ]
    assert [one.samples for one in seen][:4] == [16, 32, 48, 50]
    assert tuple(one.epoch_loss for one in seen if one.ends_epoch) == metrics.losses
    assert (seen[0].loss, seen[-1].loss) == (metrics.first_loss, metrics.last_loss)


def test_a_reduce_on_some_ranks_alone_is_refused_on_all():
    rows = rows_of(32)

    def body(group):
        own = (lambda flat: flat) if group.rank else None
        with pytest.raises(DisagreementError, match="gradient reduction"):
            run_train(linear_spec(), group, resolve=rows.__getitem__, reduce=own)

    run_ranks(2, body, transport="memory")


@pytest.mark.parametrize(
    "uri",
    [
        "init:constant?value=1e300",
        "init:uniform?low=-3e38&high=3e38",
        "init:normal",
        "init:zeros?seed=1",
        "init:constant?value=nan",
        "init:he_uniform?seed=-1",
        "init:he_uniform?seed=1&seed=2",
    ],
)
def test_a_first_value_that_cannot_be_is_refused(uri):
    params = [WeightRef("w", uri), WeightRef("b", "init:zeros")]
    with pytest.raises(UsageError, match="parameter 'w'"):
        run_train(linear_spec(params=params), resolve=rows_of(4).__getitem__)
