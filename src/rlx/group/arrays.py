"""What a collective takes: numpy arrays, checked and never coerced, and their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import UsageError
from rlx.ir import DType, ReduceOp

SUPPORTED = {member.value for member in DType} | {"int16", "uint16", "uint32", "uint64"}
_HALF = {"float16", "bfloat16"}

# numpy works the name of a dtype out anew at each question, and every collective asks: without this
# table, names took a fifth of a small all-reduce.
_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(name): name for name in sorted(SUPPORTED - {"bfloat16"})
}

_COMBINE: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.PROD: np.multiply,
}


def checked(call: str, array: object) -> np.ndarray:
    """`array`, if it is one that a collective can carry; else a `UsageError` that says why not."""
    if type(array) is np.ndarray and array.dtype in _NAMES:
        return array
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{call} takes a numpy array; got {type(array).__name__}")
    if array.dtype.name not in SUPPORTED or array.dtype.hasobject:
        raise UsageError(f"{call}: dtype {array.dtype} is not supported; use one of {_names()}")
    if not array.dtype.isnative:
        raise UsageError(
            f"{call}: the array's byte order is not this machine's ({array.dtype.str}); "
            f"convert it with array.astype(array.dtype.newbyteorder('='))"
        )
    return array


def name_of(dtype: np.dtype[Any]) -> str:
    """numpy's name of a dtype, such as "float32"."""
    return _NAMES.get(dtype) or dtype.name


def checked_bytes(call: str, data: object) -> None:
    """Refuse what is no bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"{call} takes bytes; got {type(data).__name__}")


def checked_all(call: str, parts: object, count: int) -> list[np.ndarray]:
    """`parts`, if it is a list of `count` arrays that a collective can carry."""
    if not isinstance(parts, list | tuple) or len(parts) != count:
        raise UsageError(f"{call} takes a list of {count} arrays; got {type(parts).__name__}")
    return [checked(call, part) for part in parts]


def checked_out(call: str, out: object, like: np.ndarray) -> np.ndarray:
    """`out`, if a result of `like`'s dtype and shape can be written into it as it is."""
    if not isinstance(out, np.ndarray):
        raise UsageError(f"{call}: out is a numpy array; got {type(out).__name__}")
    if out.dtype != like.dtype or out.shape != like.shape:
        raise UsageError(
            f"{call}: out must be {like.dtype}{list(like.shape)}; got {out.dtype}{list(out.shape)}"
        )
    if not out.flags.writeable or not out.flags.c_contiguous:
        raise UsageError(f"{call}: out must be writable and C-contiguous")
    return out


def operator(call: str, op: object, array: np.ndarray) -> ReduceOp:
    """The reduction that `op` names; one that is not defined for the array's dtype is an error."""
    found = op if isinstance(op, ReduceOp) else _named(call, op)
    if array.dtype.kind == "b" and found not in (ReduceOp.MAX, ReduceOp.MIN):
        raise UsageError(f"{call}: {found.name.lower()} is not defined for bool; use max or min")
    if found is ReduceOp.MEAN and array.dtype.kind in "iu":
        raise UsageError(
            f"{call}: the mean of {array.dtype} is no {array.dtype}; convert to a float dtype first"
        )
    return found


def _named(call: str, op: object) -> ReduceOp:
    for member in ReduceOp:
        if op == member.name.lower():
            return member
    known = ", ".join(member.name.lower() for member in ReduceOp)
    raise UsageError(f"{call}: the operator is a ReduceOp or one of {known}; got {op!r}")


def dtype_named(name: object) -> np.dtype[Any]:
    """The dtype that a peer calls `name`; one that no collective carries is a `KeyError`."""
    if name not in SUPPORTED:
        raise KeyError(name)
    if name == "bfloat16":
        import ml_dtypes

        wide: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return wide
    return np.dtype(str(name))


def combiner(op: ReduceOp) -> np.ufunc:
    """The elementwise function of two arrays that a reduction folds with."""
    return _COMBINE[op]


def accumulation(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which a reduction adds: half precision adds in float32 and rounds once."""
    return np.dtype(np.float32) if name_of(dtype) in _HALF else dtype


def flat(array: np.ndarray) -> np.ndarray:
    """The elements in C order in one axis; a copy only where they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1)


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    if array.size and array.dtype in _NAMES:
        return array.data.cast("B")
    # bfloat16 has no buffer format, and a view with a zero in its shape cannot be cast.
    return array.reshape(-1).view(np.uint8).data


def _names() -> str:
    return ", ".join(sorted(SUPPORTED))
