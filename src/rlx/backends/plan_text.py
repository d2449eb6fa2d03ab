"""A plan as text, for a person to read: what runs, in which order, and where everything lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy

from rlx.backends.kernels import Call
from rlx.backends.layout import Storage, View
from rlx.backends.plan import Buffer, Plan
from rlx.ir import Node


def plan_text(plan: Plan) -> str:
    """Inputs, calls in order, outputs, buffers with lifetimes, and bytes.

    A line of a call begins with its time, in which the lifetimes of buffers are counted. `%12 add`
    is a node of the user's graph, `%12 softmax/exp` a part of one. A value is its dtype, shape, and
    place: an offset in the arena, or the name of memory outside it.
    """
    bindings = ", ".join(f"{name}={value}" for name, value in sorted(plan.bindings.items()))
    offsets = {buffer.storage: buffer.offset for buffer in plan.buffers}
    names = {storage: f"parameter {name!r}" for name, storage in plan.params.items()}
    names |= {storage: f"output {index}" for index, storage in plan.owned.items()}
    shown = partial(_shown, offsets, names)
    return "\n".join(
        [
            f"plan for {bindings or 'no names'}: {len(plan.calls)} calls, arena of "
            f"{plan.arena_bytes:,} bytes, at most {plan.peak_bytes:,} in use",
            "inputs",
            *(f"  {name} = {shown(view)}" for name, view in plan.inputs.items()),
            "calls",
            *(f"{call.time:>5} {call.label}: {_call_text(call, shown)}" for call in plan.calls),
            "outputs",
            *(f"  {index} = {shown(view)}" for index, view in enumerate(plan.outputs)),
            "buffers",
            *(
                f"  {buffer.storage.label}: {buffer.storage.bytes:,} bytes at {buffer.offset}, "
                f"{_lifetime(buffer, plan)}"
                for buffer in plan.buffers
            ),
            "",
        ]
    )


def _lifetime(buffer: Buffer, plan: Plan) -> str:
    begin = "the start" if buffer.birth < 0 else str(buffer.birth)
    is_kept = not plan.calls or buffer.death > plan.calls[-1].time
    return f"from {begin} to {'the end' if is_kept else buffer.death}"


def _call_text(call: Call, shown: Callable[[View], str]) -> str:
    name = getattr(call.function, "__qualname__", None) or str(call.function)
    if isinstance(owner := getattr(call.function, "__self__", None), numpy.ufunc):
        name = f"{owner.__name__}.{call.function.__name__}"
    args = call.args if call.out is None else (*call.args, call.out)
    return f"{name.lstrip('_')}({', '.join(_arg_text(arg, shown) for arg in args)})"


def _arg_text(arg: object, shown: Callable[[View], str]) -> str:
    if isinstance(arg, View):
        return shown(arg)
    if isinstance(arg, numpy.ndarray):
        return str(arg) if arg.ndim == 0 else f"table {arg.dtype}{list(arg.shape)}"
    return f"%{arg.id}" if isinstance(arg, Node) else repr(arg)


def _shown(offsets: Mapping[Storage, int], names: Mapping[Storage, str], view: View) -> str:
    """The type of a view and its place: an offset in the arena, or the storage outside it."""
    root = view.storage.root()
    place = (
        str(offsets[root] + view.offset)
        if root in offsets
        else f"<{names.get(root, root.label)}{f'+{view.offset}' if view.offset else ''}>"
    )
    strides = "" if view.is_contiguous else f" strides {list(view.strides)}"
    return f"{view.dtype}{list(view.shape)}@{place}{strides}"
