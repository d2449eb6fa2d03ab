"""The algebra of views against numpy's own, and the arena's offsets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.backends.arena import ALIGNMENT_BYTES, Lifetime, aligned_zeros, arrange
from rlx.backends.layout import whole_storage
from rlx.ir import DType

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def pair(shape):
    """A view and the array that it describes."""
    return whole_storage("s", DType.I64, shape), np.arange(np.prod(shape, dtype=int)).reshape(shape)


def elements(view, count):
    """What the view would read from a storage that holds 0, 1, 2, ..."""
    memory = np.arange(max(count, 1), dtype=np.int64)
    if view.size == 0:
        return np.zeros(view.shape, np.int64)
    return np.ndarray(view.shape, np.int64, memory, view.offset, view.strides)


def draw_step(data, view, array):
    kind = data.draw(st.sampled_from(["transpose", "slice", "broadcast", "reshape"]))
    rank = len(view.shape)
    if kind == "transpose":
        axes = data.draw(st.permutations(range(rank)))
        return view.transposed(axes), array.transpose(axes)
    if kind == "slice":
        bound, step = st.none() | st.integers(-6, 6), st.sampled_from([None, 1, 2, -1, -2])
        picks = [(data.draw(bound), data.draw(bound), data.draw(step)) for _ in range(rank)]
        columns = list(zip(*picks, strict=True)) if picks else [(), (), ()]
        return view.sliced(*columns), array[tuple(slice(*one) for one in picks)]
    if kind == "broadcast":
        shape = (*data.draw(st.lists(st.integers(1, 2), max_size=1)), *array.shape)
        shape = tuple(data.draw(st.integers(1, 3)) if n == 1 else n for n in shape)
        return view.broadcast(shape), np.broadcast_to(array, shape)
    return draw_reshape(data, view, array)


def draw_reshape(data, view, array):
    divisors = [n for n in range(1, array.size + 1) if array.size % n == 0] or [0]
    first = data.draw(st.sampled_from(divisors))
    shape = data.draw(st.permutations([1, first, array.size // first if first else 1]))
    if array.size == 0:
        shape = [0, *shape]
    reshaped = view.reshaped(shape)
    try:
        expected = np.reshape(array, shape, copy=False)
    except ValueError:
        expected = None
    assert (reshaped is None) == (expected is None)
    return (view, array) if reshaped is None else (reshaped, expected)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_views_read_what_numpys_views_read(data):
    view, array = pair(data.draw(SHAPES))
    count = array.size
    for _ in range(data.draw(st.integers(1, 4))):
        view, array = draw_step(data, view, array)
        assert view.shape == array.shape
        np.testing.assert_array_equal(elements(view, count), array)
        assert view.is_contiguous == array.flags.c_contiguous


def test_a_view_knows_whether_it_is_the_same_place():
    view, _ = pair((3, 3))
    assert view.same_place(view.transposed([0, 1]))
    assert not view.same_place(view.transposed([1, 0]))
    assert not view.same_place(whole_storage("other", DType.I64, (3, 3)))


LIFETIMES = st.lists(
    st.builds(
        lambda size, birth, length: Lifetime(size, birth, birth + length),
        st.sampled_from([0, 1, 64, 65, 1000, 4096]),
        st.integers(-1, 20),
        st.integers(0, 8),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(LIFETIMES)
def test_buffers_alive_at_one_time_never_overlap(lifetimes):
    layout = arrange(lifetimes)
    assert layout == arrange(lifetimes)
    assert layout.peak_bytes <= layout.arena_bytes
    places = list(zip(lifetimes, layout.offsets, strict=True))
    for index, (one, at) in enumerate(places):
        assert at % ALIGNMENT_BYTES == 0
        assert 0 <= at <= at + one.bytes <= layout.arena_bytes
        for other, elsewhere in places[:index]:
            if one.birth <= other.death and other.birth <= one.death:
                assert at + one.bytes <= elsewhere or elsewhere + other.bytes <= at


def test_a_chain_of_buffers_needs_two():
    chain = [Lifetime(1000, time, time + 1) for time in range(100)]
    assert arrange(chain).arena_bytes == 2 * 1024
    assert arrange([Lifetime(1000, 0, 99) for _ in range(100)]).arena_bytes == 100 * 1024


@pytest.mark.parametrize("deaths", [(0, 0), (1, 0), (0, 1)], ids=str)
def test_free_neighbours_are_joined(deaths):
    small = [Lifetime(64, 0, death) for death in deaths]
    layout = arrange([*small, Lifetime(64, 0, 9), Lifetime(128, 2, 9)])
    assert layout.offsets == (0, 64, 128, 0)
    assert layout.arena_bytes == 192


def test_a_buffer_takes_the_smallest_free_block_that_holds_it():
    big, small = Lifetime(640, 0, 3), Lifetime(128, 2, 3)
    kept = [Lifetime(64, 1, 9), Lifetime(64, 3, 9)]
    layout = arrange([big, small, *kept, Lifetime(100, 4, 9)])
    assert layout.offsets == (0, 704, 640, 832, 704)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100_000])
def test_memory_is_aligned(size):
    memory = aligned_zeros(size)
    assert memory.nbytes == size
    assert memory.ctypes.data % ALIGNMENT_BYTES == 0 or size == 0
