"""What a compiled graph offers, whatever computes it: parameters, outputs, and a run for arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy

from rlx.backends.arena import aligned_zeros
from rlx.backends.checks import (
    bind_names,
    bindable_names,
    check_apart,
    check_bindings,
    check_exact,
    check_storage,
    refuse_unset,
    unknown_name,
)
from rlx.backends.dtypes import Array, numpy_dtype
from rlx.errors import UsageError
from rlx.ir import Graph, Node

MAX_PLANS = 8
"""How many bindings keep their plan and its memory; the least recently used goes first."""


class BoundGraph(Protocol):
    """One graph for one binding of its names, ready to run again and again.

    Fill `inputs`, call `step()`, read `outputs`: the arrays stay the same from step to step, and an
    output is whole until the next step. The memory of the parameters and of outputs that the caller
    owns is shared with the other bindings of the compiled graph. Belongs to one thread at a time.
    """

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Where each input is read from."""
        ...

    @property
    def outputs(self) -> Sequence[Array]:
        """Where the outputs are written, in the graph's order."""
        ...

    @property
    def bindings(self) -> Mapping[str, int]:
        """The value of each name."""
        ...

    def step(self) -> None:
        """Compute. What does not exist is inf or NaN, as IEEE has it, silently.

        Raises `UsageError` while a parameter has no value, and `DataError` for an index out of
        range; outputs are then not whole.
        """
        ...

    def costs(self) -> Mapping[str, int]:
        """What a step takes, by name: calls, and bytes of memory."""
        ...

    def describe(self) -> str:
        """What a step runs, as text for a person."""
        ...


class Compiled(ABC):
    """A graph ready to run. Made by `Session.compile`.

    Belongs to one thread at a time. Two of one graph share no memory but what they were both given,
    so two threads may run them at once while nobody changes the parameters.
    """

    def __init__(
        self, graph: Graph, *, params: Mapping[str, Array], outputs: Mapping[int, Array]
    ) -> None:
        if not graph.outputs:
            raise UsageError(f"graph {graph.name!r} has no outputs; call set_outputs first")
        self._graph = graph.copy()
        self._declared = {node.name: node for node in self._graph.params}
        self._params = {**self._own_storage(params), **self._given_storage(params)}
        self._unset = set(self._declared) - set(params)
        self._owned = self._given_outputs(outputs)
        check_apart(
            [(f"output {index}", array) for index, array in self._owned.items()],
            [(f"parameter {name!r}", array) for name, array in self._params.items()],
        )
        self._names = bindable_names(self._graph)
        self._plans: OrderedDict[tuple[tuple[str, int], ...], BoundGraph] = OrderedDict()

    @abstractmethod
    def _bound(self, bindings: Mapping[str, int]) -> BoundGraph:
        """Make what runs for these values of all names."""

    def set_param(self, name: str, array: Array) -> None:
        """Copy `array` into the parameter `name`. The dtype and shape must be the declared ones.

        The byte order may be the other one. Raises `UsageError`, and then nothing has changed.
        """
        target = self.param(name)
        node = self._declared[name]
        found = check_exact(f"parameter {name!r}", node, target.shape, array)
        if not target.flags.writeable:
            raise UsageError(f"the memory of parameter {name!r} is read-only")
        numpy.copyto(target, found)
        self._unset.discard(name)

    def param(self, name: str) -> Array:
        """The memory of the parameter `name` itself, not a copy."""
        if name not in self._params:
            raise unknown_name("parameter", name, self._params)
        return self._params[name]

    def run(self, inputs: Mapping[str, Any]) -> list[Array]:
        """Compute the outputs for `inputs`, whose shapes bind the names.

        The results are the caller's, except for outputs in the caller's memory, which are returned
        as they are. Raises `UsageError` for an input that is missing, unknown, or of another
        dtype or shape than declared, for a name with two values, and for a parameter without one;
        `DataError` for an index out of range.
        """
        if self._unset:
            refuse_unset(self._unset)
        bound = self.bind(bind_names(self._graph, inputs))
        for name, array in bound.inputs.items():
            numpy.copyto(array, inputs[name])
        bound.step()
        return [
            array if index in self._owned else array.copy()
            for index, array in enumerate(bound.outputs)
        ]

    def bind(self, bindings: Mapping[str, int]) -> BoundGraph:
        """What runs for one binding of the names, made now or kept from before.

        Raises `UsageError` where the names are not those of the inputs' shapes or an op has no
        result for such shapes, and `GraphError` where a dimension or slice cannot be.
        """
        checked = check_bindings(self._names, bindings)
        key = tuple(checked.items())
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        bound = self._bound(checked)
        self._plans[key] = bound
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return bound

    def _own_storage(self, given: Mapping[str, Array]) -> dict[str, Array]:
        return {name: zeros_for(node) for name, node in self._declared.items() if name not in given}

    def _given_storage(self, given: Mapping[str, Array]) -> dict[str, Array]:
        for name in given:
            if name not in self._declared:
                raise unknown_name("parameter", name, self._declared)
        return {
            name: check_storage(f"parameter {name!r}", self._declared[name], array)
            for name, array in given.items()
        }

    def _given_outputs(self, given: Mapping[int, Array]) -> dict[int, Array]:
        checked = {}
        for index, array in given.items():
            if isinstance(index, bool) or index not in range(len(self._graph.outputs)):
                raise UsageError(
                    f"there is no output {index!r}; the graph has {len(self._graph.outputs)}"
                )
            node = self._graph.nodes[self._graph.outputs[index]]
            checked[index] = check_storage(f"output {index}", node, array)
            if not array.flags.writeable:
                raise UsageError(f"the memory of output {index} is read-only")
        return checked


def zeros_for(node: Node, bindings: Mapping[str, int] | None = None) -> Array:
    """Zeros of the node's dtype and shape, aligned as the arena is."""
    shape = node.shape.bind(bindings or {})
    dtype = numpy_dtype(node.dtype)
    count = int(numpy.prod(shape, dtype=numpy.int64))
    return aligned_zeros(count * dtype.itemsize).view(dtype).reshape(shape)
