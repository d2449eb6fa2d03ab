"""A graph made simpler before it is planned: the same values by fewer and cheaper nodes.

The passes, in order: ops that are compositions are written out (`lowered`); then constants are
folded, sums of parts become concatenations, and windows that are added up come from a product for
each of their places. In each pass equal nodes become one and what no
output needs goes. All of it depends on the graph alone, so every rank plans the same.
"""

from __future__ import annotations

from rlx.backends.plan import Simplified
from rlx.backends.simplify.rewrite import Rewriting, Rule
from rlx.backends.simplify.rules import folded, lowered, placed, tiled
from rlx.ir import Graph

PASSES: tuple[tuple[Rule, ...], ...] = ((lowered,), (folded, tiled, placed))
"""Each pass tries its rules in order on every node; the first that answers holds."""


def simplified(graph: Graph) -> Simplified:
    """`graph` after all passes."""
    found = Simplified(graph, graph.nodes)
    for rules in PASSES:
        found = Rewriting(found).run(*rules)
    return found


__all__ = ["PASSES", "simplified"]
