"""A graph made anew from another, node by node, with some of its nodes replaced.

Equal nodes become one on the way, and what no output needs is left out. Inputs and parameters stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rlx.backends.plan import Simplified
from rlx.ir import Graph, Node, Op, Value

_ANY_ORDER = frozenset({Op.ADD, Op.MUL, Op.EQ, Op.NE, Op.AND, Op.OR})


Rule: TypeAlias = Callable[["Rewriting", Node, Sequence[Value]], Value | None]
"""What stands for a node, given its operands in the new graph; None for the node itself."""


class SharingGraph(Graph):
    """A graph in which a node that is there already is given again instead of added twice."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._known: dict[object, Value] = {}

    def add(self, op: Op, inputs: Sequence[int], attributes: Any) -> Value:
        """As `Graph.add`."""
        ordered = tuple(sorted(inputs) if op in _ANY_ORDER else inputs)
        key = (op, ordered, tuple(sorted(attributes.items())))
        if key not in self._known:
            self._known[key] = super().add(op, inputs, attributes)
        return self._known[key]


class Rewriting:
    """One pass over a graph: `source` is the graph before it, `graph` the one that is made.

    `uses` says how often each node of the source is taken, by others and as an output.
    """

    def __init__(self, before: Simplified) -> None:
        self.source = before.graph
        self.graph = SharingGraph(before.graph.name)
        self.uses = [0] * len(self.source.nodes)
        for node in self.source.nodes:
            for one in node.inputs:
                self.uses[one] += 1
        for one in self.source.outputs:
            self.uses[one] += 1
        self._origins = before.origins
        self._moved: dict[int, Value] = {}

    def value(self, node_id: int) -> Value:
        """What stands for an earlier node of the source in the new graph."""
        return self._moved[node_id]

    def origin(self, node: Node) -> Node:
        """The node of the user's graph that a node of the source stems from."""
        return self._origins[node.id]

    def run(self, *rules: Rule) -> Simplified:
        """Try `rules` in order on each node that matters; where none answers, the node stays."""
        graph, origins = self.graph, list[Node]()
        needed = self.source.needed()
        for node in self.source.nodes:
            if node.id in needed or node.op in (Op.INPUT, Op.PARAM):
                operands = [self._moved[one] for one in node.inputs]
                answers = (rule(self, node, operands) for rule in rules)
                made = next((one for one in answers if one is not None), None)
                if made is None:
                    made = graph.add(node.op, [one.id for one in operands], node.attributes)
                self._moved[node.id] = made
                origins += [self._origins[node.id]] * (len(graph.nodes) - len(origins))
        graph.set_outputs([self._moved[one] for one in self.source.outputs])
        return Simplified(graph, origins)
