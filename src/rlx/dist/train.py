"""A training run on one rank: `run_train`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from rlx.backends import Session
from rlx.dist.agreement import agree, agree_on_spec
from rlx.dist.digest import params_digest
from rlx.dist.files import uri_resolver
from rlx.dist.flat import layout_of
from rlx.dist.lanes import Empty, Lanes, Leaf, joined
from rlx.dist.metrics import Observer, Progress, Tally, TrainMetrics
from rlx.dist.microbatch import LEAF_EXTRA, LOSS, WEIGHT, Microbatch, Place
from rlx.dist.optimizers import optimizer_for
from rlx.dist.push import pushed_params, pushed_rows
from rlx.dist.rows import Schedule, ShardedRows, SharedRows, Step, epoch_order
from rlx.dist.sources import Resolver, load_params, load_rows
from rlx.dist.spec import TrainSpec
from rlx.dist.spec_checks import batch_dim
from rlx.errors import UsageError
from rlx.group import ProcessGroup, Span, accumulation

Reduce: TypeAlias = Callable[[np.ndarray], np.ndarray]


def run_train(
    spec: TrainSpec,
    group: ProcessGroup | None = None,
    *,
    resolve: Resolver = uri_resolver,
    reduce: Reduce | None = None,
    observer: Observer | None = None,
) -> tuple[TrainMetrics, dict[str, np.ndarray]]:
    """Train as `spec` says; return the figures and the trained parameters, in the spec's order.

    Every rank of `group` calls it with a spec that agrees in all that the bits depend on; without a
    group the world is this rank alone. All ranks end with bit-identical parameters, which are those
    of any other world size, transport and number of lanes (with explicit shards, the world size is
    part of the job).

    Parameters
    ----------
    resolve
        Takes a URI to an array or to raw bytes; see `uri_resolver`.
    reduce
        Replaces the canonical mean: it is given this rank's mean gradient, one flat vector in the
        spec's order, and gives back what to step with. The losses are then this rank's own.
    observer
        Called after each step, on the rank that passed it. What it raises ends the run.

    Raises
    ------
    DisagreementError
        The ranks' specs, first parameters or collectives differ; raised on every rank.
    DataError, UsageError
        A file or the spec is wrong on this rank. The others get `RemoteError`.
    TransportError
        A rank was lost, or did not come in time.

    If it raises, the group is of no further use: the other ranks have been told (`group.abort`).
    """
    try:
        return _Run(spec, group, resolve, reduce).train(observer)
    except BaseException as error:
        if group is not None:
            group.abort(error)
        raise


def mean_reduce(group: ProcessGroup, flat: np.ndarray) -> np.ndarray:
    """The mean of `flat` over the ranks, by the canonical sum; its errors propagate.

    With `reduce=lambda flat: mean_reduce(group, flat)` every rank counts the same, however many
    rows it has; `run_train` without `reduce` weighs ranks by their rows.
    """
    return group.all_reduce(flat, "mean", name="mean_reduce")


class _Run:
    """The state of one run on one rank."""

    def __init__(
        self,
        spec: TrainSpec,
        group: ProcessGroup | None,
        resolve: Resolver,
        reduce: Reduce | None,
    ) -> None:
        self._started = time.perf_counter()
        self._spec = spec
        self._group = group
        self._reduce = reduce
        self._rank = 0 if group is None else group.rank
        session = Session(spec.device, spec.backend)
        first, rows = _sources(spec, group, resolve)
        self._own_rows = len(next(iter(rows.values())))
        counts = _start_together(spec, group, first, self._own_rows, reduce is not None)
        self._schedule = self._scheduled(counts)
        self._layout = layout_of(first, [ref.name for ref in spec.params])
        dtype = next(iter(first.values())).dtype
        wide = accumulation(dtype)
        self._empty: Empty = np.empty if group is None else group.empty
        self._params = self._empty(self._layout.size, dtype)
        self._layout.fill(self._params, first)
        # Half-precision parameters are the rounded copy of a float32 master, which is what trains.
        self._master = self._params if wide == dtype else self._params.astype(wide)
        self._optimizer = optimizer_for(spec, self._master)
        self._total = self._empty(self._layout.size + LEAF_EXTRA, wide)
        self._total[:] = 0
        views = self._layout.views(self._params)
        self._microbatches = [
            Microbatch(spec, session, views, self._layout, rows, wide) for _ in range(spec.lanes)
        ]
        self._compute_s = self._comm_s = 0.0

    def train(self, observer: Observer | None) -> tuple[TrainMetrics, dict[str, np.ndarray]]:
        spec, steps = self._spec, self._schedule.steps
        tally = Tally()
        with Lanes(spec.lanes, len(self._total), self._total.dtype, self._empty) as lanes:
            for epoch, lr in enumerate(spec.lr_per_epoch):
                order = epoch_order(self._own_rows, spec.shuffle_seed, epoch)
                for number in range(steps):
                    step = self._schedule.step(number)
                    loss, weight = self._take(lanes, step, epoch * steps + number, order, lr)
                    tally.add(loss, weight, step.rows)
                    if observer is not None:
                        observer(
                            Progress(
                                epoch=epoch + 1,
                                epochs=spec.epochs,
                                step=number + 1,
                                steps=steps,
                                loss=loss,
                                epoch_loss=tally.epoch_loss,
                                lr=lr,
                                samples=tally.samples,
                                is_empty=not weight,
                            )
                        )
                tally.end_epoch()
        return self._metrics(tally), self._result()

    def _take(
        self, lanes: Lanes, step: Step, number: int, order: np.ndarray, lr: float
    ) -> tuple[float, float]:
        """One step: microbatches, the sum over all ranks, the update. The mean loss, and its
        weight. `number` counts the steps of the run.

        A step whose weights sum to zero changes nothing, and its loss is NaN.
        """
        begun = time.perf_counter()
        plan = step.plan
        nodes: Mapping[Span, np.ndarray] = {}
        if plan.nodes[self._rank]:
            owned, wanted = plan.ranges[self._rank], plan.nodes[self._rank]
            nodes = lanes.nodes(
                plan.leaves, owned, wanted, lambda lane: self._leaf(lane, step, number, order)
            )
        computed = time.perf_counter()
        self._compute_s += computed - begun
        loss, weight = self._combine(step, nodes)
        self._comm_s += time.perf_counter() - computed
        if weight or self._reduce is not None:
            self._optimizer.step(self._master, self._total[: self._layout.size], lr)
            if self._master is not self._params:
                np.copyto(self._params, self._master, casting="same_kind")
        return loss, weight

    def _leaf(self, lane: int, step: Step, number: int, order: np.ndarray) -> Leaf:
        microbatch = self._microbatches[lane]
        return lambda leaf, out: microbatch.leaf(
            order[step.starts[leaf] : step.stops[leaf]], Place(number, leaf), out
        )

    def _combine(self, step: Step, nodes: Mapping[Span, np.ndarray]) -> tuple[float, float]:
        """Bring the mean gradient into the total; return the mean loss and the total weight."""
        if self._reduce is not None:
            return self._reduced(step, nodes, self._reduce)
        if self._group is None:
            np.copyto(self._total, nodes[0, step.plan.leaves])
        else:
            name = f"gradients/{self._spec.grad_group}"
            self._group.sum_nodes(step.plan, nodes, self._total, name=name)
        return self._divide(step.rows)

    def _divide(self, rows: int) -> tuple[float, float]:
        """Divide the summed leaf by its weight, once: the exact mean over all rows."""
        counted = self._spec.weight_index is None
        weight = rows / self._spec.batch if counted else float(self._total[WEIGHT])
        if weight == 0:
            return float("nan"), 0.0
        if weight != 1:
            np.divide(self._total, weight, out=self._total)
        return float(self._total[LOSS]), weight

    def _reduced(
        self, step: Step, nodes: Mapping[Span, np.ndarray], reduce: Reduce
    ) -> tuple[float, float]:
        self._total[:] = 0
        own = joined((0, step.plan.leaves), nodes)
        if own is not None:
            np.copyto(self._total, own)
        first, last = step.plan.ranges[self._rank]
        rows = sum(step.stops[first:last]) - sum(step.starts[first:last])
        loss, weight = self._divide(rows)
        gradient = self._total[: self._layout.size]
        result = reduce(gradient.copy())
        if not isinstance(result, np.ndarray) or result.shape != gradient.shape:
            raise UsageError(
                f"reduce gives back a flat vector of {gradient.size} elements; got {result!r:.200}"
            )
        np.copyto(gradient, result, casting="same_kind")
        return loss, weight

    def _scheduled(self, counts: list[int]) -> Schedule:
        spec = self._spec
        schedule: Schedule
        if spec.has_shards:
            schedule = ShardedRows(counts, spec.batch)
        else:
            schedule = SharedRows(counts[0], spec.batch, spec.step_rows, len(counts))
        if isinstance(batch_dim(spec.graph, spec.data), int) and schedule.has_partial_microbatch:
            raise UsageError(
                f"{schedule.rows} rows do not divide into microbatches of {spec.batch}, and the "
                f"graph's batch is fixed at that: give axis 0 of its inputs a name, such as 'batch'"
            )
        return schedule

    def _metrics(self, tally: Tally) -> TrainMetrics:
        return TrainMetrics(
            samples=tally.samples,
            first_loss=tally.first_loss,
            last_loss=tally.last_loss,
            losses=tuple(tally.losses),
            wall_s=time.perf_counter() - self._started,
            compute_s=self._compute_s,
            comm_s=self._comm_s,
            device=self._spec.device,
            lanes=self._spec.lanes,
            empty_steps=tally.empty_steps,
        )

    def _result(self) -> dict[str, np.ndarray]:
        return {name: view.copy() for name, view in self._layout.views(self._params).items()}


def _sources(
    spec: TrainSpec, group: ProcessGroup | None, resolve: Resolver
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """First parameters and rows: from this rank's own files, or pushed by the coordinator."""
    if group is not None:
        agree_on_spec(group, spec)
    if spec.push_data and group is not None:
        return (
            pushed_params(spec, group, resolve),
            pushed_rows(spec.graph, spec.data, group, resolve),
        )
    return (
        load_params(spec.graph, spec.params, resolve),
        load_rows(spec.graph, spec.data, resolve),
    )


def _start_together(
    spec: TrainSpec,
    group: ProcessGroup | None,
    first: Mapping[str, np.ndarray],
    rows: int,
    has_own_reduce: bool,
) -> list[int]:
    """Every rank's number of rows, when all start from the same parameters."""
    if group is None:
        return [rows]
    equal = {
        "first parameters": params_digest(first)[:16],
        "gradient reduction": "the caller's" if has_own_reduce else "canonical",
    }
    if not spec.has_shards:
        equal["number of rows"] = str(rows)
    return agree(group, equal, rows, "the start")
