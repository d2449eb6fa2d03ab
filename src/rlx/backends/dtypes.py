"""numpy's dtype for each of the graph's, and arrays in words for messages."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy

from rlx.errors import UsageError
from rlx.ir import DType

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]


def numpy_dtype(dtype: DType) -> numpy.dtype[Any]:
    """The native numpy dtype of `dtype`. BF16 needs ml_dtypes; without it, a `UsageError`."""
    return _bfloat16() if dtype is DType.BF16 else numpy.dtype(dtype.value)


def is_half(dtype: DType) -> bool:
    """Whether sums over `dtype` are made in F32 and rounded once."""
    return dtype in (DType.F16, DType.BF16)


def described(array: Array) -> str:
    """The dtype and shape of an array, as the messages show them."""
    return f"{array.dtype}{list(array.shape)}"


def _bfloat16() -> numpy.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise UsageError(
            f"BF16 arrays need the package ml_dtypes ({error}); pip install rlx[bf16]"
        ) from None
    found: numpy.dtype[Any] = numpy.dtype(ml_dtypes.bfloat16)
    return found
