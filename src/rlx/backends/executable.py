"""A graph compiled for numpy: a plan for each binding of its names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from rlx.backends.bound import Bound
from rlx.backends.compiled import Compiled, zeros_for
from rlx.backends.dtypes import Array
from rlx.backends.kernels import KERNELS
from rlx.backends.plan import make_plan
from rlx.backends.simplify import simplified
from rlx.ir import Graph, Op


class Executable(Compiled):
    """A graph that numpy runs. Two executables of one graph share nothing but given memory."""

    def __init__(
        self, graph: Graph, *, params: Mapping[str, Array], outputs: Mapping[int, Array]
    ) -> None:
        super().__init__(graph, params=params, outputs=outputs)
        self._simple = simplified(self._graph)
        self._constants = self._constant_values()

    def _bound(self, bindings: Mapping[str, int]) -> Bound:
        plan = make_plan(
            self._simple, bindings, constants=self._constants, owned=frozenset(self._owned)
        )
        return Bound(plan, self._params, self._owned, self._unset)

    def _constant_values(self) -> dict[int, Array]:
        """The values of the constants, once for all plans."""
        graph = self._simple.graph
        needed = graph.needed()
        fill = KERNELS[Op.CONSTANT].fill
        assert fill is not None
        values = {}
        for node in graph.nodes:
            if node.op is Op.CONSTANT and node.id in needed:
                values[node.id] = zeros_for(node)
                numpy.copyto(values[node.id], fill(node, {}))
        return values
