"""Windows: put, get and fence, with the same content on every form."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.errors import DisagreementError, UsageError


def test_what_is_put_is_there_after_the_fence_and_not_before(ranked):
    def body(group):
        window = group.window((2, 5), np.int64)
        to = (group.rank + 1) % group.world_size
        data = np.arange(3) + 10 * group.rank
        window.put(to, data, at=4)
        data[:] = -1
        assert not window.array.any()
        window.fence()
        source = (group.rank - 1) % group.world_size
        expected = [0] * 4 + [10 * source, 10 * source + 1, 10 * source + 2] + [0] * 3
        assert window.array.reshape(-1).tolist() == expected

    ranked.groups(body)


def test_reads_see_what_was_there_before_the_writes_of_their_fence(ranked):
    def body(group):
        window = group.window(4)
        window.array[:] = group.rank
        got = [window.get(peer, at=1, count=2) for peer in range(group.world_size)]
        for peer in range(group.world_size):
            window.put(peer, np.full(4, 100 + group.rank, np.float32))
        window.fence()
        assert [one.tolist() for one in got] == [[peer] * 2 for peer in range(group.world_size)]
        assert window.array.tolist() == [99 + group.world_size] * 4, "the last rank's write stays"
        rest = window.get(0, at=3)
        window.fence()
        assert rest.tolist() == [99 + group.world_size]

    ranked.groups(body)


def test_large_parts_and_empty_fences(ranked):
    def body(group):
        window = group.window(200_000, np.float64)
        window.fence()
        window.put(0, np.full(150_000, group.rank + 1.0), at=50_000)
        whole = window.get(group.world_size - 1)
        window.fence()
        assert not whole.any()
        if group.rank == 0:
            assert (window.array[50_000:] == group.world_size).all()
        assert not window.array[:50_000].any()

    ranked.groups(body)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda window: window.put(99, np.zeros(1, np.float32)), "there is no rank 99"),
        (lambda window: window.put(0, np.zeros(1)), "the window holds float32; got float64"),
        (lambda window: window.put(0, np.zeros(9, np.float32)), "9 elements at 0 are not inside"),
        (lambda window: window.put(0, np.zeros(2, np.float32), at=-1), "2 elements at -1"),
        (lambda window: window.get(0, at=9), "not inside of a window of 8"),
        (lambda window: window.get(0, count=1.5), "1.5 elements at 0"),
        (lambda window: window.put(0, [1.0]), "takes a numpy array"),
    ],
)
def test_what_lies_outside_is_refused_where_it_is_asked_for(ranked, ask, text):
    def body(group):
        window = group.window(8)
        with pytest.raises(UsageError, match=text):
            ask(window)
        window.fence()
        assert not window.array.any()

    ranked.groups(body)


def test_ranks_that_open_different_windows_disagree(ranked):
    def body(group):
        if group.world_size == 1:
            return
        with pytest.raises(DisagreementError, match=r"window\(float32\[9\]\)"):
            group.window(8 + (group.rank == 0))

    ranked.groups(body)
