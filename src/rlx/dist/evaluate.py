"""Figures of a graph over rows, computed by all ranks: accuracy, loss, and what else it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlx.backends import BoundGraph, Session, check_device
from rlx.dist.agreement import agree
from rlx.dist.digest import params_digest
from rlx.dist.fields import all_of, check, check_int, check_text
from rlx.dist.files import uri_resolver
from rlx.dist.lanes import Lanes
from rlx.dist.push import pushed_rows
from rlx.dist.rows import SharedRows
from rlx.dist.sources import Resolver, load_rows
from rlx.dist.spec import SPEC_LIMIT_BYTES, SPEC_VERSION, DataRef
from rlx.dist.spec_checks import batch_dim, check_data, row_inputs
from rlx.errors import UsageError
from rlx.group import ProcessGroup
from rlx.ir import DROPOUT_KEY, Graph
from rlx.wire import Record, WireKind, decode_record, encode_record


NO_DROPOUT = (-1, 0, 0)
"""The key with which dropout drops nothing."""


class EvaluationSpec(Record, frozen=True):
    """What a rank needs to evaluate trained parameters over rows.

    Each output of the graph gives the figure of the same place in `names`: a vector of one number a
    row, or a number without axes that is a mean over the rows of the batch. The figure is the mean
    over all rows, each counted once.
    """

    graph: Graph
    names: Sequence[str]
    data: Sequence[DataRef]
    batch: int
    push_data: bool = False
    backend: str = "numpy"
    device: str = "cpu"

    def __post_init__(self) -> None:
        check(isinstance(self.graph, Graph), f"graph is a Graph; got {type(self.graph).__name__}")
        self._normalise("names", all_of("names", self.names, str))
        self._normalise("data", all_of("data", self.data, DataRef))
        check_int("batch", self.batch, least=1)
        check(isinstance(self.push_data, bool), "push_data is a bool")
        check_device(self.device, self.backend)
        for name in self.names:
            check_text("a figure's name", name)
        if any(ref.has_shard for ref in self.data):
            raise UsageError("an evaluation divides its rows itself; its data has no shards")
        check_data(self.graph, row_inputs(self.graph), self.data, self.batch)
        outputs = [self.graph.nodes[one] for one in self.graph.outputs]
        if len(outputs) != len(self.names) or len(set(self.names)) != len(self.names):
            raise UsageError(
                f"graph {self.graph.name!r} has {len(outputs)} outputs; an evaluation names each "
                f"of them once, got {list(self.names)}"
            )
        leading = batch_dim(self.graph, self.data)
        for name, node in zip(self.names, outputs, strict=True):
            if node.shape.dims not in ((), (leading,)) or not node.dtype.is_float:
                raise UsageError(
                    f"figure {name!r} is {node.type}; expected floating-point, without axes or one "
                    f"number a row: [{leading}]"
                )

    def facts(self) -> dict[str, str]:
        """What all ranks of an evaluation share, each fact short enough to be shown."""
        inputs = [(ref.input, ref.elem) for ref in self.data]
        return {
            "graph": self.graph.digest()[:16],
            "figures": ", ".join(self.names)[:200],
            "inputs": str(inputs)[:200],
            "batch": str(self.batch),
            "push_data": str(self.push_data),
            "backend": self.backend,
        }

    def to_bytes(self) -> bytes:
        """The canonical encoding."""
        return encode_record(self, WireKind.EVALUATION_SPEC, SPEC_VERSION)

    @staticmethod
    def from_bytes(data: bytes) -> EvaluationSpec:
        """The spec that `data` encodes; anything else is a `WireError`."""
        return decode_record(
            data,
            EvaluationSpec,
            WireKind.EVALUATION_SPEC,
            SPEC_VERSION,
            limit_bytes=SPEC_LIMIT_BYTES,
        )


def evaluate(
    spec: EvaluationSpec,
    params: Mapping[str, np.ndarray],
    group: ProcessGroup | None = None,
    *,
    resolve: Resolver = uri_resolver,
) -> dict[str, float]:
    """The figures of `spec` with `params`; the same on every rank, for every number of ranks.

    Rows are summed in float64 along the canonical tree over the microbatches. Ranks whose graphs,
    parameters or numbers of rows differ all raise `DisagreementError`. If it raises, the group is of
    no further use: the other ranks have been told (`group.abort`).
    """
    try:
        return _evaluate(spec, params, group, resolve)
    except BaseException as error:
        if group is not None:
            group.abort(error)
        raise


def _evaluate(
    spec: EvaluationSpec,
    params: Mapping[str, np.ndarray],
    group: ProcessGroup | None,
    resolve: Resolver,
) -> dict[str, float]:
    session = Session(spec.device, spec.backend)
    if group is not None:
        agree(group, {**spec.facts(), "parameters": params_digest(params)[:16]}, 0, "evaluation")
    if spec.push_data and group is not None:
        rows = pushed_rows(spec.graph, spec.data, group, resolve)
    else:
        rows = load_rows(spec.graph, spec.data, resolve)
    count = len(next(iter(rows.values())))
    if group is not None:
        agree(group, {"number of rows": str(count)}, count, "evaluation's rows")
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    step = SharedRows(count, spec.batch, count, world_size).step(0)
    sums = _Sums(spec, session, params, rows)
    total = np.zeros(len(spec.names), np.float64)
    with Lanes(1, len(total), total.dtype, np.empty) as lanes:
        nodes = lanes.nodes(
            step.plan.leaves,
            step.plan.ranges[rank],
            step.plan.nodes[rank],
            lambda lane: lambda leaf, out: sums.leaf(step.starts[leaf], step.stops[leaf], out),
        )
        if group is None:
            total = nodes[0, step.plan.leaves]
        else:
            group.sum_nodes(step.plan, nodes, total, name="evaluation")
    return {name: float(figure) / count for name, figure in zip(spec.names, total, strict=True)}


class _Sums:
    """The sum of each figure over the rows of one microbatch."""

    def __init__(
        self,
        spec: EvaluationSpec,
        session: Session,
        params: Mapping[str, np.ndarray],
        rows: Mapping[str, np.ndarray],
    ) -> None:
        self._rows = rows
        self._batch_dim = batch_dim(spec.graph, spec.data)
        self._executable = session.compile(spec.graph)
        for node in spec.graph.params:
            if node.name not in params:
                raise UsageError(f"the evaluation's parameter {node.name!r} is not a trained one")
            self._executable.set_param(node.name, params[node.name])

    def leaf(self, start: int, stop: int, out: np.ndarray) -> None:
        """Write the sums over rows `start` to `stop`."""
        bound = self._bound(stop - start)
        for name, rows in self._rows.items():
            np.copyto(bound.inputs[name], rows[start:stop])
        if DROPOUT_KEY in bound.inputs:
            bound.inputs[DROPOUT_KEY][...] = NO_DROPOUT
        bound.step()
        for place, output in enumerate(bound.outputs):
            mean_of_batch = output.ndim == 0
            out[place] = (
                float(output) * (stop - start) if mean_of_batch else output.sum(dtype=np.float64)
            )

    def _bound(self, count: int) -> BoundGraph:
        if isinstance(self._batch_dim, int):
            if count != self._batch_dim:
                raise UsageError(
                    f"the evaluation's batch is fixed at {self._batch_dim} rows, but the last one "
                    f"has {count}: give axis 0 of its inputs a name, such as 'batch'"
                )
            return self._executable.bind({})
        return self._executable.bind({self._batch_dim: count})
