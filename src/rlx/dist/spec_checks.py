"""Does a spec fit its graph? Every reference, shape and dtype is held against what the graph
says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlx.errors import UsageError
from rlx.ir import DROPOUT_KEY, Dim, Graph, Node

if TYPE_CHECKING:
    from rlx.dist.spec import DataRef, TrainSpec


def check_against_graph(spec: TrainSpec) -> None:
    """Raise `UsageError` where the spec and its graph do not belong together."""
    graph = spec.graph
    _check_names("parameter", [ref.name for ref in spec.params], [one.name for one in graph.params])
    _check_outputs(spec, graph)
    inputs = {node.name: node for node in graph.inputs}
    if spec.seed_input not in inputs or inputs[spec.seed_input].shape.rank:
        raise UsageError(
            f"graph {graph.name!r} has no input {spec.seed_input!r} without axes for the seed "
            f"cotangent; make it with grad_with_loss, or name it in seed_input"
        )
    rows = [node for node in row_inputs(graph) if node.name != spec.seed_input]
    check_data(graph, rows, spec.data, spec.batch)
    if spec.has_shards and spec.global_batch is not None:
        raise UsageError(
            "global_batch is for data without shards; a step of shards takes a batch "
            "from every rank"
        )


def row_inputs(graph: Graph) -> list[Node]:
    """The inputs that rows feed: all but the key of dropout, which the run makes."""
    return [node for node in graph.inputs if node.name != DROPOUT_KEY]


def check_data(graph: Graph, inputs: Sequence[Node], data: Sequence[DataRef], batch: int) -> None:
    """Hold the data references against the inputs that they feed."""
    _check_names("input", [ref.input for ref in data], [node.name for node in inputs])
    by_name = {node.name: node for node in inputs}
    for ref in data:
        _check_rows(by_name[ref.input], ref, batch)
    leading = {by_name[ref.input].shape[0] for ref in data}
    if len(leading) > 1:
        raise UsageError(
            f"graph {graph.name!r}: axis 0 of every input is the batch; it is "
            f"{' and '.join(sorted(str(dim) for dim in leading))}"
        )
    shards = {(ref.shard_len, ref.has_shard) for ref in data}
    if len(shards) > 1:
        raise UsageError("the shards of all inputs have one length, or none has a shard")


def batch_dim(spec_graph: Graph, data: Sequence[DataRef]) -> Dim:
    """Axis 0 of the inputs: a name, or the one batch size that the graph allows."""
    return spec_graph[data[0].input].shape[0]


def _check_outputs(spec: TrainSpec, graph: Graph) -> None:
    count = len(graph.outputs)
    last = spec.grad_start + len(spec.params)
    if spec.loss_index >= count or last > count:
        raise UsageError(
            f"graph {graph.name!r} has {count} outputs; the spec wants a loss at "
            f"{spec.loss_index} and gradients at {spec.grad_start} to {last - 1}"
        )
    loss = graph.nodes[graph.outputs[spec.loss_index]]
    if loss.shape.rank or not loss.dtype.is_float:
        raise UsageError(f"the loss is a floating-point value without axes; got {loss.type}")
    for offset, ref in enumerate(spec.params):
        gradient = graph.nodes[graph.outputs[spec.grad_start + offset]]
        param = graph[ref.name].node
        if gradient.type != param.type:
            raise UsageError(
                f"output {spec.grad_start + offset} is {gradient.type}; as the gradient of "
                f"{ref.name!r} it would be {param.type}"
            )
    dtypes = {graph[ref.name].dtype for ref in spec.params}
    if len(dtypes) > 1 or not all(dtype.is_float for dtype in dtypes):
        raise UsageError(
            f"all parameters have one floating-point dtype; got "
            f"{', '.join(sorted(str(dtype) for dtype in dtypes))}"
        )
    if spec.weight_index is not None:
        _check_weight(spec.weight_index, graph)


def _check_weight(index: int, graph: Graph) -> None:
    if index >= len(graph.outputs):
        raise UsageError(f"weight_index {index}: the graph has {len(graph.outputs)} outputs")
    weight = graph.nodes[graph.outputs[index]]
    if weight.shape.rank or not weight.dtype.is_number:
        raise UsageError(f"a microbatch's weight is a number without axes; got {weight.type}")


def _check_names(what: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise UsageError(f"{what} {_quoted(twice)} has more than one reference")
    missing, extra = set(wanted) - set(given), set(given) - set(wanted)
    if missing or extra:
        parts = [
            *(
                [f"{what} {_quoted(sorted(missing))} of the graph has no reference"]
                if missing
                else []
            ),
            *([f"the graph has no {what} {_quoted(sorted(extra))}"] if extra else []),
        ]
        raise UsageError(f"{'; '.join(parts)} (it has {_quoted(wanted) or 'none'})")


def _check_rows(node: Node, ref: DataRef, batch: int) -> None:
    if node.shape.rank < 1:
        raise UsageError(f"input {ref.input!r} is {node.type}; axis 0 would be the batch")
    leading = node.shape[0]
    if isinstance(leading, int) and leading != batch:
        raise UsageError(
            f"input {ref.input!r} is {node.type}, but a microbatch has {batch} rows; give axis 0 a "
            f"name, or make the two equal"
        )
    elements = 1
    for dim in node.shape.dims[1:]:
        if not isinstance(dim, int):
            raise UsageError(
                f"input {ref.input!r} is {node.type}; in a training run only axis 0 has a name"
            )
        elements *= dim
    if elements != ref.elem:
        raise UsageError(
            f"input {ref.input!r} is {node.type}: {elements} elements a row, not {ref.elem}"
        )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
