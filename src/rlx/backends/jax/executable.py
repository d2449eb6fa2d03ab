"""A graph compiled for XLA, with its parameters and outputs in numpy's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rlx.backends.checks import refuse_unset
from rlx.backends.compiled import BoundGraph, Compiled, zeros_for
from rlx.backends.dtypes import Array
from rlx.backends.executable import Executable
from rlx.backends.jax.program import Program, Programs, fed_nodes
from rlx.ir import Graph, Op


class JaxExecutable(Compiled):
    """A graph that XLA runs. Those of one session share what was compiled, and no memory."""

    def __init__(
        self,
        graph: Graph,
        programs: Programs,
        *,
        params: Mapping[str, Array],
        outputs: Mapping[int, Array],
    ) -> None:
        super().__init__(graph, params=params, outputs=outputs)
        self._programs = programs
        self._digest = self._graph.digest()
        self._masks = self._drawn_by_numpy()

    def _bound(self, bindings: Mapping[str, int]) -> JaxBound:
        program = self._programs.program(self._graph, self._digest, bindings)
        masks = None if self._masks is None else self._masks.bind(bindings)
        inputs = _inputs(self._graph, bindings) if masks is None else masks.inputs
        outputs = [
            self._owned[place]
            if place in self._owned
            else zeros_for(self._graph.nodes[one], bindings)
            for place, one in enumerate(self._graph.outputs)
        ]
        fed = {**self._params, **inputs}
        return JaxBound(program, inputs, fed, outputs, masks, self._unset)

    def _drawn_by_numpy(self) -> Executable | None:
        """What draws the graph's masks, if it has any, from the same inputs and parameters."""
        masks = [node.id for node in fed_nodes(self._graph) if node.op is Op.KEEP_MASK]
        if not masks:
            return None
        drawing = self._graph.copy()
        drawing.set_outputs([drawing.value(one) for one in masks])
        return Executable(drawing, params=self._params, outputs={})


class JaxBound:
    """A program with memory to read from and to write to; see `BoundGraph`.

    `named` are the arrays of inputs and parameters, and `masks`, if there are any, is what draws
    them. jax's own arrays live for one step.
    """

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, Array],
        named: Mapping[str, Array],
        outputs: Sequence[Array],
        masks: BoundGraph | None,
        unset: Collection[str],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._program = program
        self._masks = masks
        self._unset = unset
        drawn = iter(() if masks is None else masks.outputs)
        self._fed = [
            next(drawn) if node.op is Op.KEEP_MASK else named[node.name] for node in program.fed
        ]

    @property
    def bindings(self) -> Mapping[str, int]:
        """The value of each name."""
        return self._program.bindings

    def step(self) -> None:
        """As `BoundGraph.step`; where it raises, no output has changed."""
        if self._unset:
            refuse_unset(self._unset)
        if self._masks is not None:
            self._masks.step()
        self._program.run(self._fed, self.outputs)

    def costs(self) -> Mapping[str, int]:
        """The bytes of arguments, of results, and of all between."""
        return self._program.costs()

    def describe(self) -> str:
        """XLA's text of its program; the plan is its own."""
        return self._program.describe()


def _inputs(graph: Graph, bindings: Mapping[str, int]) -> dict[str, Array]:
    return {node.name: zeros_for(node, bindings) for node in graph.inputs}
