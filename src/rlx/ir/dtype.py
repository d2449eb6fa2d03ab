"""The element types that a graph may hold."""

from __future__ import annotations

import enum


class DType(enum.Enum):
    """An element type; the value is numpy's name for it."""

    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"
    I8 = "int8"
    U8 = "uint8"
    I32 = "int32"
    I64 = "int64"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return _ITEMSIZE[self]

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer type; BOOL is none."""
        return self in _INTEGERS

    @property
    def is_number(self) -> bool:
        """Whether arithmetic is defined: every type but BOOL."""
        return self is not DType.BOOL

    def __str__(self) -> str:
        return self.name


_ITEMSIZE = {
    DType.F16: 2,
    DType.BF16: 2,
    DType.F32: 4,
    DType.F64: 8,
    DType.I8: 1,
    DType.U8: 1,
    DType.I32: 4,
    DType.I64: 8,
    DType.BOOL: 1,
}
_FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
_INTEGERS = frozenset({DType.I8, DType.U8, DType.I32, DType.I64})
