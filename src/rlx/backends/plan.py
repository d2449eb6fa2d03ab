"""The plan of one graph for one binding of its names: which call writes which buffer.

Pure: it allocates nothing and runs nothing. The steps are: find the nodes that an output needs; lay
every value out as a view of some storage; decide which storage each output ends in; emit the calls,
writing over dying operands; and give each storage of the arena an offset by its lifetime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlx.backends.arena import Lifetime, arrange
from rlx.backends.dtypes import Array
from rlx.backends.kernels import KERNELS, Call, Emitter, Fill, Kernel, label_of
from rlx.backends.layout import Storage, View, whole_storage
from rlx.errors import GraphError, UsageError
from rlx.ir import Graph, Node, Op

_BEFORE_ALL = -1

_MOVERS = frozenset({Op.CAST, Op.RESHAPE, Op.TRANSPOSE, Op.BROADCAST, Op.SLICE})
"""Ops whose result holds elements of their one operand."""


@dataclass(frozen=True, slots=True)
class Simplified:
    """A graph, and for each of its nodes the node of the user's graph that it stems from.

    Errors of a run speak of the latter.
    """

    graph: Graph
    origins: Sequence[Node]


class Buffer(NamedTuple):
    """A storage in the arena; it lives while the nodes `birth` to `death`, in order, run."""

    storage: Storage
    offset: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before memory is taken. `owned` are outputs in memory of the caller."""

    bindings: Mapping[str, int]
    calls: tuple[Call, ...]
    inputs: Mapping[str, View]
    outputs: tuple[View, ...]
    params: Mapping[str, Storage]
    owned: Mapping[int, Storage]
    fixed: Mapping[Storage, Array]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    peak_bytes: int


def make_plan(
    simple: Simplified,
    bindings: Mapping[str, int],
    *,
    constants: Mapping[int, Array],
    owned: Collection[int] = (),
) -> Plan:
    """Plan a graph with its names bound.

    `constants` are the values of CONSTANT nodes that are known already, by id; `owned` are the
    places in the graph's outputs whose results go to memory of the caller. Raises `GraphError`
    where a dimension cannot be, and `UsageError` where an op has no result for the shapes of this
    run.
    """
    planner = _Planner(simple, bindings, constants)
    planner.lay_out_values()
    planner.place_outputs(owned)
    planner.find_deaths()
    planner.emit_calls()
    return planner.finish()


def last_source(graph: Graph, node: Node) -> str:
    """The input or parameter whose elements, moved and converted at most, the last operand of
    `node` holds; "" where there is none."""
    inputs = node.inputs[-1:]
    while inputs:
        found = graph.nodes[inputs[0]]
        if found.op in (Op.INPUT, Op.PARAM):
            return f"{'input' if found.op is Op.INPUT else 'parameter'} {found.name!r}"
        inputs = found.inputs if found.op in _MOVERS else ()
    return ""


class _Planner:
    """The state of one planning; `make_plan` calls the steps in order."""

    def __init__(
        self, simple: Simplified, bindings: Mapping[str, int], constants: Mapping[int, Array]
    ) -> None:
        self.graph = simple.graph
        self.origins = simple.origins
        self.bindings = bindings
        self.constants = constants
        self.values: dict[int, View] = {}
        self.inputs: dict[str, View] = {}
        self.params: dict[str, Storage] = {}
        self.fixed: dict[Storage, Array] = {}
        self.computed: list[Node] = []
        self.outputs: dict[int, View] = {}
        self.owned: dict[int, Storage] = {}
        self.copies: list[tuple[Node, View, View]] = []
        self.births: dict[Storage, int] = {}
        self.deaths: dict[Storage, int] = {}
        self.emit = Emitter()

    @property
    def end(self) -> int:
        """The time after the last call: the computed nodes, then the copies of outputs."""
        return len(self.computed) + len(self.copies)

    def lay_out_values(self) -> None:
        """Give each value that matters a view: of its operand's storage, or of one of its own."""
        needed = self.graph.needed()
        for node in self.graph.nodes:
            if node.id in needed or node.op is Op.INPUT:
                self.values[node.id] = self._lay_out(node, self._bound_shape(node))

    def _lay_out(self, node: Node, shape: tuple[int, ...]) -> View:
        kernel = KERNELS[node.op]
        if kernel.alias is not None:
            view = kernel.alias(node, self.values[node.inputs[0]], shape)
            if view is not None:
                return self._of_shape(node, view, shape)
        view = self._new_view(node, shape, self._order(node, shape) if kernel.keeps_order else None)
        if node.op is Op.INPUT:
            self.inputs[node.name] = view
            self.births[view.storage] = _BEFORE_ALL
        elif node.op is Op.PARAM:
            self.params[node.name] = view.storage
        elif kernel.fill is not None:
            known = self.constants.get(node.id)
            self.fixed[view.storage] = self._filled(node, kernel.fill) if known is None else known
        else:
            self.births[view.storage] = len(self.computed)
            self.computed.append(node)
        return view

    def _order(self, node: Node, shape: tuple[int, ...]) -> Sequence[int] | None:
        """The order in which an elementwise op's operands lie; row order where one of them does.

        Operands that are repeated do not count.
        """
        operands = [self.values[one] for one in node.inputs]
        orders = [one.order for one in operands if one.shape == shape and not one.repeats]
        rows = tuple(range(len(shape)))
        return None if rows in orders else next(iter(orders), None)

    def _new_view(
        self, node: Node, shape: tuple[int, ...], order: Sequence[int] | None = None
    ) -> View:
        return whole_storage(label_of(node, self.origins[node.id]), node.dtype, shape, order)

    def _filled(self, node: Node, fill: Fill) -> Array:
        try:
            return fill(node, self.bindings)
        except UsageError as error:
            raise UsageError(f"{self.origins[node.id]}: {error}") from None

    def _bound_shape(self, node: Node) -> tuple[int, ...]:
        try:
            return node.shape.bind(self.bindings)
        except GraphError as error:
            raise GraphError(f"{self.origins[node.id]}: {error}") from None

    def _of_shape(self, node: Node, view: View, shape: tuple[int, ...]) -> View:
        """A slice beyond the end of a named dimension shows only when the name is bound."""
        if view.shape != shape:
            raise GraphError(
                f"{self.origins[node.id]}: the result has shape {list(view.shape)}; the graph says "
                f"{list(shape)}, so a bound lies beyond the end of what was given"
            )
        return view

    def place_outputs(self, owned: Collection[int]) -> None:
        """Decide where each output ends: where it is computed if that may be, else in a copy."""
        for index in sorted(owned):
            view = self.values[self.graph.outputs[index]]
            if not self._is_temporary(view.storage) or not view.is_whole:
                view = self._copy_of_output(index, view)
            self.owned[index] = view.storage
            self.births.pop(view.storage, None)
            self.outputs[index] = view
        for index, one in enumerate(self.graph.outputs):
            if index not in self.outputs:
                view = self.values[one]
                if not self._is_temporary(view.storage):
                    view = self._copy_of_output(index, view)
                self.outputs[index] = view

    def _copy_of_output(self, index: int, view: View) -> View:
        node = self.graph.nodes[self.graph.outputs[index]]
        target = self._new_view(node, view.shape)
        self.births[target.storage] = len(self.computed) + len(self.copies)
        self.copies.append((node, target, view))
        return target

    def _is_temporary(self, storage: Storage) -> bool:
        """Whether a step computes this storage, in the arena."""
        return self.births.get(storage, _BEFORE_ALL) != _BEFORE_ALL

    def find_deaths(self) -> None:
        """Find the last time that each storage is used. Inputs and outputs are kept to the end."""
        self.deaths = dict(self.births)
        for time, node in enumerate(self.computed):
            for operand in node.inputs:
                self.deaths[self.values[operand].storage] = time
        kept = [*self.inputs.values(), *self.outputs.values()]
        for view in kept + [source for _, _, source in self.copies]:
            self.deaths[view.storage] = self.end

    def emit_calls(self) -> None:
        """Emit the calls of each computed node, then the copies of outputs."""
        for time, node in enumerate(self.computed):
            kernel = KERNELS[node.op]
            assert kernel.build is not None
            operands = [self.values[operand] for operand in node.inputs]
            out = self.values[node.id]
            self._write_over_operand(time, kernel, operands, out)
            self.emit.begin(time, node, self.origins[node.id], last_source(self.graph, node))
            kernel.build(self.emit, node, operands, out)
            self._keep_scratch(time)
        for time, (node, target, source) in enumerate(self.copies, len(self.computed)):
            self.emit.begin(time, node, self.origins[node.id])
            self.emit.copy(target, source)

    def _keep_scratch(self, time: int) -> None:
        for storage in self.emit.scratches:
            self.births[storage] = self.deaths[storage] = time
        self.emit.scratches.clear()

    def _write_over_operand(
        self, time: int, kernel: Kernel, operands: list[View], out: View
    ) -> None:
        if not self._is_temporary(out.storage):
            return
        for place in kernel.overwrites[: len(operands)]:
            if self._may_write_over(time, operands, operands[place], out):
                root = operands[place].storage.root()
                self.deaths[root] = self.deaths[out.storage]
                del self.births[out.storage]
                out.storage.merged_into = root
                return

    def _may_write_over(self, time: int, operands: list[View], candidate: View, out: View) -> bool:
        root = candidate.storage.root()
        return (
            self._is_temporary(root)
            and self.deaths[root] == time
            and candidate.fills_as(out)
            and all(
                other.same_place(candidate) for other in operands if other.storage.root() is root
            )
        )

    def finish(self) -> Plan:
        """Lay the arena out."""
        storages = list(self.births)
        lifetimes = [Lifetime(one.bytes, self.births[one], self.deaths[one]) for one in storages]
        layout = arrange(lifetimes)
        buffers = [
            Buffer(storage, offset, life.birth, life.death)
            for storage, offset, life in zip(storages, layout.offsets, lifetimes, strict=True)
        ]
        return Plan(
            bindings=dict(self.bindings),
            calls=tuple(self.emit.calls),
            inputs=self.inputs,
            outputs=tuple(self.outputs[index] for index in range(len(self.outputs))),
            params=self.params,
            owned=self.owned,
            fixed=self.fixed,
            buffers=tuple(buffers),
            arena_bytes=layout.arena_bytes,
            peak_bytes=layout.peak_bytes,
        )
