"""Named arrays as views of one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layout:
    """Where each named array lies in a flat vector: one behind the other, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Elements of all arrays together."""
        return sum(math.prod(shape) for shape in self.shapes)

    def views(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """The named arrays, as views of `flat`, which has at least `size` elements."""
        views, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            views[name] = flat[start:stop].reshape(shape)
            start = stop
        return views

    def fill(self, flat: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy each array into its place."""
        for name, view in self.views(flat).items():
            np.copyto(view, arrays[name], casting="same_kind")


def layout_of(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> Layout:
    """The layout that holds `arrays` in the order of `names`."""
    return Layout(tuple(names), tuple(arrays[name].shape for name in names))
