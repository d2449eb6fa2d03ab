"""The driver of reverse mode: walks a graph backwards once and lets the rules emit cotangents."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.autodiff.prune import pruned
from rlx.autodiff.rules import VJP, Site
from rlx.errors import GraphError, NoGradientError
from rlx.ir import Graph, Node, ReduceOp, Shape, Value

SEED_INPUT = "d_output"
"""The input that holds the seed cotangent: 1 gives the gradient of the loss itself."""


def grad_with_loss(graph: Graph, wrt: Sequence[Value | str], *, seed: str = SEED_INPUT) -> Graph:
    """A graph that computes the loss and its gradients.

    Parameters
    ----------
    graph
        Its first output is the loss: a floating-point value without axes.
    wrt
        Parameters or other floating-point values of `graph`, or names of its inputs and parameters.
    seed
        The name of the one more input of the result: the cotangent of the loss, of its dtype.

    Returns
    -------
    Graph
        Its outputs are `[loss, *gradients, *rest]`: a gradient for each of `wrt`, of its shape and
        dtype, and then the outputs of `graph` after the first. Nodes that none of them needs are
        left out; inputs and parameters all stay.

    Raises
    ------
    NoGradientError
        The loss does not depend on one of `wrt`, or only through ops that have no gradient.
    """
    work, loss, gradients = _differentiate(graph, wrt, seed)
    rest = [work.value(one) for one in graph.outputs[1:]]
    work.set_outputs([loss, *gradients, *rest])
    return pruned(work)


def grad(graph: Graph, wrt: Sequence[Value | str], *, seed: str = SEED_INPUT) -> Graph:
    """Like `grad_with_loss`, with the gradients alone as outputs."""
    work, _, gradients = _differentiate(graph, wrt, seed)
    work.set_outputs(gradients)
    return pruned(work)


def _differentiate(
    graph: Graph, wrt: Sequence[Value | str], seed: str
) -> tuple[Graph, Value, list[Value]]:
    if not graph.outputs:
        raise GraphError(f"graph {graph.name!r} has no outputs; call set_outputs([loss]) first")
    work = graph.copy(f"{graph.name}.grad")
    targets = [_target(graph, one) for one in wrt]
    loss = work.value(graph.outputs[0])
    if loss.shape.rank or not loss.dtype.is_float:
        raise NoGradientError(
            f"graph {graph.name!r}: the loss is {loss.node.type}; a gradient needs a "
            f"floating-point value without axes (reduce it with a mean or a sum)"
        )
    cotangents = {loss.id: work.input(seed, [], loss.dtype)}
    _walk(work, loss.id, _dependents(work, targets, loss.id), cotangents)
    return work, loss, [_found(graph, cotangents, target) for target in targets]


def _target(graph: Graph, one: Value | str) -> int:
    value = graph[one] if isinstance(one, str) else one
    if not isinstance(value, Value) or value.graph is not graph:
        raise GraphError(f"{one!r} is no value of graph {graph.name!r}")
    if not value.dtype.is_float:
        raise NoGradientError(f"{value.node}: only floating-point values have gradients")
    return value.id


def _dependents(graph: Graph, targets: Sequence[int], last: int) -> list[bool]:
    """For each node up to `last`, whether a gradient can flow through it to one of `targets`.

    None flows through integers and BOOL, which change in steps.
    """
    depends: list[bool] = []
    for node in graph.nodes[: last + 1]:
        reaches = node.id in targets or any(depends[one] for one in node.inputs)
        depends.append(reaches and node.dtype.is_float)
    return depends


def _walk(graph: Graph, last: int, depends: list[bool], cotangents: dict[int, Value]) -> None:
    """Visit nodes from `last` to the first; each hands its cotangent down to its inputs.

    A node's uses come after it, so its cotangent is whole when it is visited. Shares are added in
    the order of that walk, which depends on the graph alone.
    """
    for node in list(graph.nodes[last::-1]):
        rule = VJP[node.op]
        if node.id not in cotangents or rule is None or not depends[node.id]:
            continue
        site = Site(graph, tuple(graph.value(one) for one in node.inputs), node.attributes)
        shares = rule(site, graph.value(node.id), cotangents[node.id])
        for operand, share in zip(site.inputs, shares, strict=True):
            if share is not None and depends[operand.id]:
                whole = _unbroadcast(share, operand.shape)
                earlier = cotangents.get(operand.id)
                cotangents[operand.id] = whole if earlier is None else earlier + whole


def _unbroadcast(share: Value, shape: Shape) -> Value:
    """Sum a cotangent over the axes along which its operand was broadcast."""
    if share.shape == shape:
        return share
    extra = share.shape.rank - shape.rank
    axes = [
        axis
        for axis, dim in enumerate(share.shape)
        if axis < extra or (shape[axis - extra] == 1 and dim != 1)
    ]
    summed = share.graph.reduce(ReduceOp.SUM, share, axes) if axes else share
    return summed if summed.shape == shape else summed.reshape(*shape)


def _found(graph: Graph, cotangents: dict[int, Value], target: int) -> Value:
    if target not in cotangents:
        raise NoGradientError(_why(graph, graph.nodes[target]))
    return cotangents[target]


def _why(graph: Graph, node: Node) -> str:
    users = {node.id}
    for later in graph.nodes[node.id + 1 : graph.outputs[0] + 1]:
        if users & set(later.inputs):
            users.add(later.id)
    if graph.outputs[0] in users:
        return (
            f"graph {graph.name!r}: the loss depends on {node} only through ops that have no "
            f"gradient (comparisons, argmax, casts to integers)"
        )
    return f"graph {graph.name!r}: the loss does not depend on {node}"
