"""One microbatch: gather its rows, run the graph, and write gradients, loss and weight as a
leaf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlx.backends import BoundGraph, Compiled, Session, numpy_dtype
from rlx.dist.flat import Layout
from rlx.dist.spec import TrainSpec
from rlx.dist.spec_checks import batch_dim
from rlx.errors import DataError, UsageError
from rlx.group import accumulation
from rlx.ir import DROPOUT_KEY

LOSS, WEIGHT = -2, -1
"""Where a leaf, which is `[*gradients, loss, weight]`, holds the last two."""

LEAF_EXTRA = 2


class Place(NamedTuple):
    """Which microbatch of the whole run it is: of which step, and which of the step's, over all
    ranks."""

    step: int
    leaf: int


class Microbatch:
    """The executable of one lane, with its parameters shared and its gradients in a vector of its
    own.

    Parameters
    ----------
    session
        Where the graph runs; lanes that share one share what is compiled.
    params
        Views of the run's flat parameter vector, read in place.
    dtype
        The dtype of a leaf: the parameters' own, or float32 for half precision.
    """

    def __init__(
        self,
        spec: TrainSpec,
        session: Session,
        params: Mapping[str, np.ndarray],
        layout: Layout,
        rows: Mapping[str, np.ndarray],
        dtype: np.dtype[np.generic],
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._leaf = np.zeros(layout.size + LEAF_EXTRA, dtype)
        self._gradients = list(layout.views(self._leaf).values())
        direct = all(array.dtype == dtype for array in params.values())
        self._direct = direct
        outputs = {spec.grad_start + i: view for i, view in enumerate(self._gradients)}
        self._executable: Compiled = session.compile(
            spec.graph, params=params, outputs=outputs if direct else None
        )
        self._batch_name = batch_dim(spec.graph, spec.data)
        self._bound: dict[int, BoundGraph] = {}

    def leaf(self, order: np.ndarray, place: Place, out: np.ndarray) -> None:
        """Compute the leaf of the rows `order` into `out`: gradients, loss and weight.

        Loss and gradients are scaled by the weight: the rows as a share of a full microbatch, or
        what the graph says with `weight_index`. A leaf of weight zero is zero, whatever its loss.
        """
        bound = self._run(order, place)
        weight = self._weight(bound, len(order))
        if weight == 0:
            out[:] = 0
            return
        self._leaf[LOSS] = bound.outputs[self._spec.loss_index]
        self._leaf[WEIGHT] = 1
        np.multiply(self._leaf, weight, out=out) if weight != 1 else np.copyto(out, self._leaf)

    def _run(self, order: np.ndarray, place: Place) -> BoundGraph:
        bound = self.bound_for(len(order))
        for name, rows in self._rows.items():
            # Indices are checked where the order is made; "clip" only keeps take from buffering.
            np.take(rows, order, axis=0, out=bound.inputs[name], mode="clip")
        if DROPOUT_KEY in bound.inputs:
            bound.inputs[DROPOUT_KEY][...] = (self._spec.dropout_seed, *place)
        bound.step()
        if not self._direct:
            for offset, view in enumerate(self._gradients):
                np.copyto(view, bound.outputs[self._spec.grad_start + offset], casting="same_kind")
        return bound

    def bound_for(self, count: int) -> BoundGraph:
        """The plan of a microbatch of `count` rows, made now or kept from before."""
        if count not in self._bound:
            if isinstance(self._batch_name, int) and count != self._batch_name:
                raise UsageError(
                    f"the graph's batch is fixed at {self._batch_name} rows, but a microbatch has "
                    f"{count}: give axis 0 of its inputs a name, such as 'batch'"
                )
            named = {} if isinstance(self._batch_name, int) else {self._batch_name: count}
            bound = self._executable.bind(named)
            bound.inputs[self._spec.seed_input][...] = 1
            self._bound[count] = bound
        return self._bound[count]

    def _weight(self, bound: BoundGraph, count: int) -> float:
        if self._spec.weight_index is None:
            return count / self._spec.batch
        weight = float(bound.outputs[self._spec.weight_index])
        if not math.isfinite(weight) or weight < 0:
            raise DataError(f"a microbatch's weight is finite and >= 0; the graph gives {weight}")
        return weight


def plan_microbatch(spec: TrainSpec, rows: int) -> BoundGraph:
    """The plan of a microbatch of `rows` rows, as each lane of a run of `spec` has it.

    Raises `UsageError` where the graph has no result for so many rows.
    """
    nodes = [spec.graph[ref.name].node for ref in spec.params]
    layout = Layout(tuple(node.name for node in nodes), tuple(node.shape.bind({}) for node in nodes))
    params = np.zeros(layout.size, numpy_dtype(nodes[0].dtype))
    session = Session(spec.device, spec.backend)
    views, wide = layout.views(params), accumulation(params.dtype)
    microbatch = Microbatch(spec, session, views, layout, {}, wide)
    return microbatch.bound_for(rows)
