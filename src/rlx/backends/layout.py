"""Where the elements of a value lie in its storage: shape, strides and offset, without any memory.

The same algebra that numpy does on arrays (transpose, slice, broadcast, reshape without a copy),
done on numbers, so that a plan can be made, tested and printed before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from rlx.ir import DType


@dataclass(eq=False, slots=True)
class Storage:
    """One run of bytes. Compared by identity; the plan decides where it lies."""

    bytes: int
    label: str
    merged_into: Storage | None = field(default=None, repr=False)

    def root(self) -> Storage:
        """The storage that this one was merged into by writing in place, or itself."""
        found = self
        while found.merged_into is not None:
            found = found.merged_into
        return found


@dataclass(frozen=True, slots=True)
class View:
    """Elements of `dtype` inside a storage; strides and offset are in bytes, as in numpy."""

    storage: Storage
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes the elements take when they lie side by side."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie side by side in row order."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize)

    @property
    def order(self) -> tuple[int, ...]:
        """The axes from the widest stride to the narrowest: the order in which elements lie."""
        return tuple(sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis])))

    @property
    def repeats(self) -> bool:
        """Whether an element occurs at more than one place, as in broadcast axes."""
        return any(
            size > 1 and not stride for size, stride in zip(self.shape, self.strides, strict=True)
        )

    @property
    def is_whole(self) -> bool:
        """Whether this is all of its storage, in row order."""
        return self.is_contiguous and self.offset == 0 and self.bytes == self.storage.bytes

    def fills_as(self, other: View) -> bool:
        """Whether this is all of its storage, and `other` lies in its own element by element
        alike."""
        return (
            self.offset == other.offset == 0
            and self.shape == other.shape
            and self.dtype is other.dtype
            and self.bytes == self.storage.root().bytes
            and all(
                one == two or size == 1
                for one, two, size in zip(self.strides, other.strides, self.shape, strict=True)
            )
        )

    def same_place(self, other: View) -> bool:
        """Whether both are the same bytes, element by element."""
        return (
            self.storage.root() is other.storage.root()
            and self.offset == other.offset
            and self.shape == other.shape
            and self.strides == other.strides
            and self.dtype.itemsize == other.dtype.itemsize
        )

    def transposed(self, axes: Sequence[int]) -> View:
        """The axes in the given order."""
        shape = tuple(self.shape[axis] for axis in axes)
        strides = tuple(self.strides[axis] for axis in axes)
        return View(self.storage, self.dtype, shape, strides, self.offset)

    def broadcast(self, shape: Sequence[int]) -> View:
        """Repeated to `shape`, to which it must broadcast; repeated axes have stride 0."""
        added = len(shape) - len(self.shape)
        strides = [0] * added
        for size, stride, wanted in zip(self.shape, self.strides, shape[added:], strict=True):
            strides.append(stride if size == wanted else 0)
        return View(self.storage, self.dtype, tuple(shape), tuple(strides), self.offset)

    def sliced(
        self,
        starts: Sequence[int | None],
        stops: Sequence[int | None],
        steps: Sequence[int | None],
    ) -> View:
        """Python's slice on every axis."""
        offset = self.offset
        shape, strides = [], []
        axes = zip(self.shape, self.strides, starts, stops, steps, strict=True)
        for size, stride, start, stop, step in axes:
            picked = range(*slice(start, stop, step).indices(size))
            shape.append(len(picked))
            strides.append(stride * picked.step)
            offset += stride * picked.start if len(picked) else 0
        return View(self.storage, self.dtype, tuple(shape), tuple(strides), offset)

    def picked(self, axes: Sequence[int], places: Sequence[int]) -> View:
        """One place on each of `axes`, which are dropped."""
        offset = self.offset
        for axis, place in zip(axes, places, strict=True):
            offset += self.strides[axis] * place
        kept = [axis for axis in range(len(self.shape)) if axis not in axes]
        shape = tuple(self.shape[axis] for axis in kept)
        strides = tuple(self.strides[axis] for axis in kept)
        return View(self.storage, self.dtype, shape, strides, offset)

    def unfolded(self, axes: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> View:
        """Windows along axes: see `Builder.unfold`. Windows that overlap share elements."""
        shape, strides = list(self.shape), list(self.strides)
        for axis, size, step in zip(axes, sizes, steps, strict=True):
            shape[axis] = (self.shape[axis] - size) // step + 1
            strides[axis] = self.strides[axis] * step
            shape.append(size)
            strides.append(self.strides[axis])
        return View(self.storage, self.dtype, tuple(shape), tuple(strides), self.offset)

    def folded(
        self, axes: Sequence[int], lengths: Sequence[int], steps: Sequence[int]
    ) -> View | None:
        """What `unfolded` took these windows from, where they touch, cover all and lie as there.

        None where that takes a copy, or an addition.
        """
        rank = len(self.shape) - len(axes)
        shape, strides = list(self.shape[:rank]), list(self.strides[:rank])
        inner = zip(self.shape[rank:], self.strides[rank:], strict=True)
        for axis, length, step, (size, stride) in zip(axes, lengths, steps, inner, strict=True):
            if step != size or shape[axis] * size != length or strides[axis] != size * stride:
                return None
            shape[axis], strides[axis] = length, stride
        return View(self.storage, self.dtype, tuple(shape), tuple(strides), self.offset)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """The same elements in the same order in another shape; None where that takes a copy."""
        wanted = tuple(shape)
        strides = _reshaped_strides(self.shape, self.strides, wanted, self.dtype.itemsize)
        if strides is None:
            return None
        return View(self.storage, self.dtype, wanted, strides, self.offset)


def whole_storage(
    label: str, dtype: DType, shape: Sequence[int], order: Sequence[int] | None = None
) -> View:
    """A storage of its own for an array, whose axes lie in `order`, outermost first; in row order
    for None."""
    storage = Storage(prod(shape) * dtype.itemsize, label)
    axes = range(len(shape)) if order is None else order
    dense = row_strides([shape[axis] for axis in axes], dtype.itemsize)
    strides = dict(zip(axes, dense, strict=True))
    return View(storage, dtype, tuple(shape), tuple(strides[axis] for axis in range(len(shape))))


def row_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of elements that lie side by side in row order."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether such elements lie side by side in row order; axes of length 1 do not count."""
    if 0 in shape:
        return True
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    """The strides of a reshape without a copy, or None.

    Old and new axes are matched in groups of one size; the old axes of a group must be one evenly
    spaced run. The method is that of numpy's `attempt_nocopy_reshape`.
    """
    if is_contiguous(shape, strides, itemsize):
        return row_strides(wanted, itemsize)
    old = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    first = 0
    axis = 0
    while first < len(old):
        last, below, above = first + 1, old[first][0], 1
        group = axis
        while above != below or group == axis:
            if above < below or group == axis:
                above *= wanted[group]
                group += 1
            else:
                below *= old[last][0]
                last += 1
        run = old[first:last]
        if any(one[1] != two[1] * two[0] for one, two in pairwise(run)):
            return None
        result.extend(row_strides(wanted[axis:group], run[-1][1]))
        first, axis = last, group
    result.extend([itemsize] * (len(wanted) - axis))
    return tuple(result)
