"""A plan in memory: one arena, and a flat list of calls on arrays inside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import numpy

from rlx.backends.arena import aligned_zeros
from rlx.backends.checks import refuse_unset
from rlx.backends.dtypes import Array, numpy_dtype
from rlx.backends.kernels import Call
from rlx.backends.layout import Storage, View
from rlx.backends.plan import Plan
from rlx.backends.plan_text import plan_text

_BUFFER_ELEMENTS = 512


class Bound:
    """One graph for one binding of its names, ready to run again and again.

    Fill `inputs`, call `step()`, read `outputs`: the arrays stay the same from step to step, and an
    output is whole until the next step. The memory of the parameters and of outputs that the caller
    owns is shared with the other plans of the executable. Belongs to one thread at a time.
    """

    def __init__(
        self,
        plan: Plan,
        params: Mapping[str, Array],
        owned: Mapping[int, Array],
        unset: Collection[str],
    ) -> None:
        self._plan = plan
        self._unset = unset
        self._arena = aligned_zeros(plan.arena_bytes)
        self._memory = _memory_of(plan, self._arena, params, owned)
        self._arrays: dict[View, Array] = {}
        self.inputs: dict[str, Array] = {
            name: self._array(view) for name, view in plan.inputs.items()
        }
        self.outputs: list[Array] = [
            owned[index] if index in owned else self._array(view)
            for index, view in enumerate(plan.outputs)
        ]
        self._calls = [self._prebound(call) for call in plan.calls]
        self._context = _numpy_context()

    @property
    def bindings(self) -> Mapping[str, int]:
        """The value of each name."""
        return self._plan.bindings

    @property
    def calls(self) -> int:
        """How many calls a step makes."""
        return len(self._calls)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena: inputs, results, and all that is computed on the way."""
        return self._plan.arena_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes of the arena that are in use at one time; no arena can be smaller."""
        return self._plan.peak_bytes

    def step(self) -> None:
        """Run the calls in order. What does not exist is inf or NaN, as IEEE has it, silently.

        Raises `UsageError` while a parameter has no value, and `DataError` for an index out of
        range; outputs are then not whole.
        """
        if self._unset:
            refuse_unset(self._unset)
        self._context.run(_run_all, self._calls)

    def costs(self) -> Mapping[str, int]:
        """The calls of a step, and the bytes of the arena."""
        return {
            "calls": self.calls,
            "arena_bytes": self.arena_bytes,
            "peak_bytes": self.peak_bytes,
        }

    def describe(self) -> str:
        """The plan as text: inputs, calls in order, outputs, buffers with lifetimes, and bytes."""
        return plan_text(self._plan)

    def _prebound(self, call: Call) -> Callable[[], Any]:
        args = [self._array(arg) if isinstance(arg, View) else arg for arg in call.args]
        if call.out is not None:
            return partial(call.function, *args, out=self._array(call.out))
        return partial(call.function, *args)

    def _array(self, view: View) -> Array:
        if view not in self._arrays:
            self._arrays[view] = _array_in(self._memory[view.storage.root()], view)
        return self._arrays[view]


def _run_all(calls: Sequence[Callable[[], Any]]) -> None:
    for call in calls:
        call()


def _numpy_context() -> Context:
    """numpy's settings during a step: IEEE results are no warnings, and iterators buffer little.

    Whatever the caller has set does not matter, so neither do the bits depend on it. A small buffer
    is what keeps a step from allocating (an elementwise op that broadcasts takes one of this many
    elements), and is no slower: adding a row to F32[64, 2048] took 12 us with 512, 20 us with
    numpy's own 8192 (numpy 2.4, one EPYC core).
    """
    context = Context()
    context.run(numpy.seterr, all="ignore")
    context.run(numpy.setbufsize, _BUFFER_ELEMENTS)
    return context


def _memory_of(
    plan: Plan, arena: Array, params: Mapping[str, Array], owned: Mapping[int, Array]
) -> dict[Storage, Array]:
    """The bytes (uint8) of each storage."""
    memory = {
        one.storage: arena[one.offset : one.offset + one.storage.bytes] for one in plan.buffers
    }
    memory.update({storage: _bytes_of(array) for storage, array in plan.fixed.items()})
    memory.update({storage: _bytes_of(params[name]) for name, storage in plan.params.items()})
    memory.update({storage: _bytes_of(owned[index]) for index, storage in plan.owned.items()})
    return memory


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(numpy.uint8)


def _array_in(memory: Array, view: View) -> Array:
    dtype = numpy_dtype(view.dtype)
    if view.size == 0:
        # Such a view may begin past the end of its memory, and no element of it is ever touched.
        return numpy.empty(view.shape, dtype)
    return numpy.ndarray(view.shape, dtype, memory, view.offset, view.strides)
