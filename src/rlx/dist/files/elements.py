"""The element types that files may hold, and arrays over a file's bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlx.dist.files.raw import Content
from rlx.errors import DataError

_MAX_DIMENSIONS: Final = 64
"""numpy's own limit."""

_MAX_BYTES: Final = 2**63 - 1
"""What numpy can address. It is asked of empty arrays too, whose other dimensions may be huge."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element type: numpy's name, the kind and bytes in which it lies in a file, and its
    name in safetensors."""

    name: str
    code: str
    tag: str

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return int(self.code[1:])


ELEMENTS: Final = (
    Element("float16", "f2", "F16"),
    Element("bfloat16", "u2", "BF16"),  # numpy has none: its bits lie there as integers
    Element("float32", "f4", "F32"),
    Element("float64", "f8", "F64"),
    Element("int8", "i1", "I8"),
    Element("uint8", "u1", "U8"),
    Element("int32", "i4", "I32"),
    Element("int64", "i8", "I64"),
    Element("bool", "b1", "BOOL"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies in `content`: its bytes are `data[begin:end]`.

    `what` says which array it is in messages ("" where the file holds but one), `byte_order` is
    "<" or ">", `order` is "C" or "F".
    """

    content: Content
    what: str
    begin: int
    end: int
    element: Element
    shape: tuple[int, ...]
    byte_order: str = "<"
    order: str = "C"

    def check(self) -> None:
        """`DataError` unless the bytes are exactly those that the shape needs; allocates none."""
        dims = f"{self.element.name}{list(self.shape)}"
        if len(self.shape) > _MAX_DIMENSIONS:
            raise self.error(
                f"it has {len(self.shape)} dimensions; at most {_MAX_DIMENSIONS} are supported"
            )
        needed = math.prod(self.shape) * self.element.itemsize
        has = self.end - self.begin
        if needed != has:
            raise self.error(f"{dims} needs {needed} bytes, has {has}")
        if math.prod(size or 1 for size in self.shape) * self.element.itemsize > _MAX_BYTES:
            raise self.error(f"the dimensions of {dims} are too large for this machine")

    def array(self) -> np.ndarray:
        """The array, read-only, native and C-ordered; a view of the file's bytes where they are
        already that, a copy elsewhere. Call `check` first."""
        wide = self._bfloat16() if self.element.name == "bfloat16" else None
        stored: np.dtype[Any] = np.dtype(self.byte_order + self.element.code)
        array = self._native(stored)
        if self.element.name == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise self.error("a bool is a byte of 0 or 1; this one holds other bytes")
        if wide is not None:
            array = array.view(wide)
        array.setflags(write=False)
        return array

    def _native(self, stored: np.dtype[Any]) -> np.ndarray:
        native = stored.newbyteorder("=")
        if self.begin == self.end:
            return np.empty(self.shape, native)
        view: np.ndarray = np.ndarray(
            self.shape,
            stored,
            self.content.data[self.begin : self.end],
            order="F" if self.order == "F" else "C",
        )
        if not view.flags.aligned:  # legal in both formats, but slow in every loop that follows
            return view.astype(native, order="C")
        return view.astype(native, order="C", copy=False)

    def _bfloat16(self) -> np.dtype[Any]:
        try:
            import ml_dtypes
        except ImportError:
            raise self.error("BF16 needs ml_dtypes: pip install rlx[bf16]") from None
        wide: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return wide

    def error(self, reason: str) -> DataError:
        """The error that says what is wrong with this array."""
        return self.content.error(f"{self.what}{reason}")


def supported(names: Sequence[str]) -> str:
    """A list of element types for messages."""
    return f"supported: {', '.join(names)}"
