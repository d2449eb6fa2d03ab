"""Layers made of ops: what a model calls by one name, and a graph holds as a few nodes.

Images are [N, H, W, C], channels last: a convolution is then one matrix product over windows whose
elements lie together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rlx.errors import GraphError
from rlx.ir.builder import Builder
from rlx.ir.dims import product
from rlx.ir.inference import wide_dtype
from rlx.ir.ops import BinaryOp, ReduceOp
from rlx.ir.value import Value
from rlx.ir.windows import window_count

DROPOUT_KEY = "dropout_key"
"""The input that says which elements a step drops: I64[3] of seed, step and microbatch."""


_SHORT_RUN = 16
"""Windows whose rows have fewer elements are copied faster place by place than window by window."""


class LayerBuilder(Builder):
    """Convolution, pooling, normalisation and dropout.

    Every size, stride and padding is an int, or one for each axis.
    """

    def conv2d(
        self,
        x: Value,
        kernel: Value,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        groups: int = 1,
    ) -> Value:
        """The cross-correlation of images [N, H, W, C] with `kernel` [KH, KW, C / groups, F].

        The result is [N, (H + 2 padding - KH) // stride + 1, the same of W, F]. `padding` rows and
        columns of zeros are put on each side first. With groups, the g-th part of the channels
        meets the g-th part of the filters alone. H, W and all of the kernel's dimensions are ints.
        """
        *_, channels = _image("conv2d", x)
        high, wide, depth, filters = _kernel(kernel, channels, groups)
        _same_floats("conv2d", x, kernel)
        x = self._padded(x, *_pair("conv2d: padding", padding, least=0))
        steps = _pair("conv2d: stride", stride, least=1)
        size = high * wide * depth
        if groups == 1 and wide * depth < _SHORT_RUN:
            windows = self._windows("conv2d", x, (high, wide), steps)
            places = windows.shape.dims[:3]
            flat = self.transpose(windows, (4, 5, 3, 0, 1, 2)).reshape(size, product(places))
            return (flat.transpose() @ kernel.reshape(size, filters)).reshape(*places, filters)
        if groups == 1:
            windows = self._windows("conv2d", x, (high, wide), steps)
            places = windows.shape.dims[:3]
            flat = self.transpose(windows, (0, 1, 2, 4, 5, 3)).reshape(*places, size)
            return flat @ kernel.reshape(size, filters)
        parts = x.reshape(*x.shape.dims[:3], groups, depth)
        windows = self._windows("conv2d", parts, (high, wide), steps)
        places = windows.shape.dims[:3]
        flat = self.transpose(windows, (3, 0, 1, 2, 5, 6, 4)).reshape(groups, product(places), size)
        each = self.transpose(kernel.reshape(size, groups, filters // groups), (1, 0, 2))
        return self.transpose(flat @ each, (1, 0, 2)).reshape(*places, filters)

    def max_pool(
        self, x: Value, size: int | Sequence[int], stride: int | Sequence[int] | None = None
    ) -> Value:
        """The greatest element of each window of images [N, H, W, C], channel by channel.

        Windows are `stride` apart (`size` unless said) and lie wholly in the image.
        """
        return self._pool("max_pool", ReduceOp.MAX, x, size, stride)

    def average_pool(
        self, x: Value, size: int | Sequence[int], stride: int | Sequence[int] | None = None
    ) -> Value:
        """The mean of each window; otherwise as `max_pool`."""
        return self._pool("average_pool", ReduceOp.MEAN, x, size, stride)

    def layer_norm(
        self,
        x: Value,
        gain: Value | None = None,
        bias: Value | None = None,
        epsilon: float = 1e-5,
    ) -> Value:
        """(x - mean) / sqrt(variance + epsilon) over the last axis, times `gain`, plus `bias`.

        The variance is the mean square deviation (not n - 1). `gain` and `bias` broadcast against
        x. F16 and BF16 are computed in F32 and rounded once, since their squares overflow.
        Source: Ba, Kiros, Hinton, "Layer Normalization", arXiv 1607.06450.
        """
        if x.shape.rank < 1 or not x.dtype.is_float:
            raise GraphError(f"layer_norm takes floats with an axis; got {x.dtype}{x.shape}")
        if not 0 < epsilon < float("inf"):
            raise GraphError(f"layer_norm: epsilon is positive and finite; got {epsilon!r}")
        dtype = wide_dtype(x.dtype)
        scaled = self.normalize(x if x.dtype is dtype else x.cast(dtype), float(epsilon))
        for operand, op in ((gain, BinaryOp.MUL), (bias, BinaryOp.ADD)):
            if operand is not None:
                if operand.dtype is not x.dtype:
                    raise GraphError(f"layer_norm: x is {x.dtype}, but got a {operand.dtype} too")
                wide = operand if operand.dtype is dtype else operand.cast(dtype)
                scaled = self.binary(op, scaled, wide)
        return scaled if x.dtype is dtype else scaled.cast(x.dtype)

    def dropout(self, x: Value, rate: float) -> Value:
        """`x` with each element set to 0 with probability `rate`, the others times 1/(1 - rate).

        Which elements go depends on the graph's input `DROPOUT_KEY`, an I64[3] of (seed, step,
        microbatch) that a training run fills and that is the same for every number of ranks. A
        negative seed drops nothing: so an evaluation runs. Each call in a graph is a stream of
        its own. `rate` is rounded to a multiple of 2**-32.
        Source: Srivastava et al., "Dropout", JMLR 15 (2014).
        """
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise GraphError(f"dropout: rate is a number from 0 to below 1; got {rate!r}")
        if not x.dtype.is_float:
            raise GraphError(f"dropout takes floats; got {x.dtype}{x.shape}")
        dropped = min(round(rate * 2**32), 2**32 - 1)
        if not dropped:
            return x
        mask = self.keep_mask(self._dropout_key(), x.shape, dropped, self._streams(), x.dtype)
        return x * mask

    @abstractmethod
    def _dropout_key(self) -> Value:
        """The input `DROPOUT_KEY`, made where there is none."""

    @abstractmethod
    def _streams(self) -> int:
        """How many masks there are so far."""

    def _padded(self, x: Value, rows: int, columns: int) -> Value:
        """Images with so many rows and columns of zeros on each side."""
        if not rows and not columns:
            return x
        n, height, width, channels = _image("padding", x)
        return self.unslice(
            x,
            [n, height + 2 * rows, width + 2 * columns, channels],
            [None, rows, columns, None],
            [None, rows + height, columns + width, None],
        )

    def _windows(self, what: str, x: Value, sizes: Sequence[int], steps: Sequence[int]) -> Value:
        """`unfold` over H and W; where a window does not fit, the error speaks of `what`."""
        for axis, size, step in zip((1, 2), sizes, steps, strict=True):
            window_count(what, x.shape, axis, x.shape[axis], size, step)
        return self.unfold(x, (1, 2), sizes, steps)

    def _pool(
        self,
        what: str,
        op: ReduceOp,
        x: Value,
        size: int | Sequence[int],
        stride: int | Sequence[int] | None,
    ) -> Value:
        _image(what, x)
        sizes = _pair(f"{what}: size", size, least=1)
        steps = sizes if stride is None else _pair(f"{what}: stride", stride, least=1)
        windows = self.transpose(self._windows(what, x, sizes, steps), (0, 1, 2, 4, 5, 3))
        return self.reduce(op, windows, (3, 4))


def _image(what: str, x: Value) -> tuple[int | str, int, int, int]:
    if x.shape.rank != 4:
        raise GraphError(f"{what} takes images [N, H, W, C]; got {x.shape}")
    n, height, width, channels = x.shape.dims
    if isinstance(height, str) or isinstance(width, str) or isinstance(channels, str):
        raise GraphError(f"{what}: H, W and C are known when the graph is built; got {x.shape}")
    return n, height, width, channels


def _kernel(kernel: Value, channels: int, groups: object) -> tuple[int, int, int, int]:
    """KH, KW, C / groups and F of a kernel that suits so many channels and groups."""
    if kernel.shape.rank != 4 or not all(isinstance(dim, int) for dim in kernel.shape):
        raise GraphError(f"conv2d takes a kernel [KH, KW, C / groups, F]; got {kernel.shape}")
    high, wide, depth, filters = (int(dim) for dim in kernel.shape)
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise GraphError(f"conv2d: groups is an int of at least 1; got {groups!r}")
    if depth * groups != channels or filters % groups:
        raise GraphError(
            f"conv2d: {channels} channels, {filters} filters and {groups} group(s) do not suit "
            f"a kernel {kernel.shape}: it has C / groups channels, and groups divides F"
        )
    return high, wide, depth, filters


def _same_floats(what: str, x: Value, kernel: Value) -> None:
    if x.dtype is not kernel.dtype or not x.dtype.is_float:
        raise GraphError(
            f"{what} takes images and a kernel of one floating-point dtype; got "
            f"{x.node.type} and {kernel.node.type}; cast one"
        )


def _pair(what: str, given: int | Sequence[int], *, least: int) -> tuple[int, int]:
    pair = tuple(given) if isinstance(given, Sequence) else (given, given)
    good = all(isinstance(one, int) and not isinstance(one, bool) and one >= least for one in pair)
    if len(pair) != 2 or not good:
        raise GraphError(f"{what} is an int >= {least}, or two of them; got {given!r}")
    return pair[0], pair[1]
