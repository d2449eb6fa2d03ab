"""What may come in: arrays of the declared dtype and shape, and values for the names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy

from rlx.backends.dtypes import Array, described, numpy_dtype
from rlx.errors import UsageError
from rlx.ir import Graph, Node, evaluate, is_name


def bindable_names(graph: Graph) -> frozenset[str]:
    """The names that the shapes of the inputs bind."""
    return frozenset(
        dim for node in graph.inputs for dim in node.shape if isinstance(dim, str) and is_name(dim)
    )


def unknown_name(what: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that there is not, with the nearest one that there is."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(names) or 'none'}"
    return UsageError(f"there is no {what} {name!r}; {hint}")


def check_dtype(what: str, node: Node, array: object) -> Array:
    """`array` itself, if it is a numpy array (or scalar) of the node's dtype in any byte order."""
    if not isinstance(array, numpy.ndarray | numpy.generic) or isinstance(
        array, numpy.ma.MaskedArray
    ):
        raise UsageError(f"{what} takes a numpy array {node.type}; got {type(array).__name__}")
    found: Array = numpy.asarray(array)
    if found.dtype.newbyteorder("=") != numpy_dtype(node.dtype):
        raise UsageError(
            f"{what} takes {node.type}; got {described(found)}; convert it with "
            f"astype({node.dtype.value!r})"
        )
    return found


def check_exact(what: str, node: Node, shape: tuple[int, ...], array: object) -> Array:
    """`array` itself, if it has the node's dtype and exactly `shape`."""
    found = check_dtype(what, node, array)
    if found.shape != shape:
        raise UsageError(f"{what} takes {node.type}, here {list(shape)}; got {described(found)}")
    return found


def check_storage(what: str, node: Node, array: object) -> Array:
    """`array` itself, if it can serve as the memory of a value: exact, native, side by side."""
    if not node.shape.is_static:
        raise UsageError(f"{what} has the shape {node.shape}, which no fixed memory has")
    found = check_exact(what, node, node.shape.bind({}), array)
    if not isinstance(array, numpy.ndarray) or not found.dtype.isnative:
        raise UsageError(f"{what} takes memory in this machine's byte order; got {found.dtype.str}")
    if not (found.flags.c_contiguous and found.flags.aligned):
        raise UsageError(
            f"{what} takes memory that lies side by side in row order; got strides "
            f"{list(found.strides)} for shape {list(found.shape)}"
        )
    return found


def check_apart(outputs: Sequence[tuple[str, Array]], params: Sequence[tuple[str, Array]]) -> None:
    """Refuse outputs that share memory with each other or with a parameter."""
    places = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes, writes, what)
        for writes, group in ((True, outputs), (False, params))
        for what, array in group
        if array.nbytes
    )
    last_write = last_read = (0, "")
    for start, end, writes, what in places:
        for reach, other in (last_write, last_read) if writes else (last_write,):
            if start < reach:
                raise UsageError(f"{what} and {other} share memory; each result needs its own")
        if writes:
            last_write = max(last_write, (end, what))
        else:
            last_read = max(last_read, (end, what))


def bind_names(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The value of each name, from the shapes of the inputs; checks every input on the way."""
    declared = {node.name: node for node in graph.inputs}
    for name in inputs:
        if name not in declared:
            raise unknown_name("input", name, declared)
    bindings: dict[str, int] = {}
    origins: dict[str, str] = {}
    for name, node in declared.items():
        if name not in inputs:
            raise UsageError(f"the input {name!r} is missing; it takes {node.type}")
        array = check_dtype(f"input {name!r}", node, inputs[name])
        if array.ndim != node.shape.rank:
            raise UsageError(f"input {name!r} takes {node.type}; got {described(array)}")
        for axis, (dim, size) in enumerate(zip(node.shape, array.shape, strict=True)):
            if is_name(dim):
                _bind(bindings, origins, str(dim), size, f"axis {axis} of input {name!r}")
    for name, node in declared.items():
        shape = tuple(evaluate(dim, bindings) for dim in node.shape)
        check_exact(f"input {name!r}", node, shape, inputs[name])
    return bindings


def _bind(
    bindings: dict[str, int], origins: dict[str, str], name: str, size: int, origin: str
) -> None:
    if bindings.setdefault(name, size) != size:
        raise UsageError(
            f"the dimension {name!r} is {bindings[name]} by {origins[name]} and {size} by {origin}"
        )
    origins.setdefault(name, origin)


def check_bindings(known: Iterable[str], bindings: Mapping[str, int]) -> dict[str, int]:
    """The bindings, if there is one natural number for each known name and none beside."""
    names = frozenset(known)
    for name, value in bindings.items():
        if name not in names:
            raise unknown_name("dimension", name, names)
        if isinstance(value, bool) or not isinstance(value, int | numpy.integer) or value < 0:
            raise UsageError(f"the dimension {name!r} takes an int >= 0; got {value!r}")
    if missing := names - set(bindings):
        raise UsageError(f"no value was given for the dimension(s) {', '.join(sorted(missing))}")
    return {name: int(bindings[name]) for name in sorted(names)}


def refuse_unset(unset: Collection[str]) -> None:
    """Raise the `UsageError` of a run before its parameters have values."""
    names = ", ".join(repr(name) for name in sorted(unset))
    raise UsageError(f"no value was set for the parameter(s) {names}; call set_param first")
