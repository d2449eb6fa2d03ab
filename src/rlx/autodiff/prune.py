"""Leave out what no output needs."""

from __future__ import annotations

from rlx.ir import Graph, Op, Value


def pruned(graph: Graph) -> Graph:
    """The same computation without the nodes that no output needs; inputs and parameters stay."""
    needed = graph.needed()
    result = Graph(graph.name)
    moved: dict[int, Value] = {}
    for node in graph.nodes:
        if node.id in needed or node.op in (Op.INPUT, Op.PARAM):
            inputs = [moved[one].id for one in node.inputs]
            moved[node.id] = result.add(node.op, inputs, node.attributes)
    result.set_outputs([moved[one] for one in graph.outputs])
    return result
