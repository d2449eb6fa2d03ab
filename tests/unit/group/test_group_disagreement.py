"""What the error says when ranks disagree, and whom it shows apart."""

from __future__ import annotations

import pytest

from rlx.group.calls import Call, disagreement
from rlx.net import Deadline, Mismatch

CALL = Call(3, "barrier()", Deadline(1))


def lines(round_number, stamp, size=0):
    expected = CALL.stamp(round_number)
    mismatch = Mismatch(1, 1, expected, 0, stamp, size)
    return str(disagreement(CALL, 0, 3, [mismatch])).splitlines()[1:-1]


@pytest.mark.parametrize(
    ("round_number", "stamp", "size", "said"),
    [
        (1, b"call 3.1: all_reduce(sum, int8[1])", 1, "all_reduce(sum, int8[1])"),
        (1, CALL.stamp(1), 9, "barrier() in 9 bytes, where 0 were expected"),
        (2, CALL.stamp(2), 9, "call 3.2: barrier() in 9 bytes, where 0 were expected"),
        (2, CALL.stamp(1), 0, "barrier() once more, where call 3.2 was expected"),
    ],
)
def test_the_rank_whose_message_is_wrong_stands_alone(round_number, stamp, size, said):
    shown = lines(round_number, stamp, size)
    assert len(shown) == 2
    assert shown[0].startswith("  rank 0, 2: ")
    assert shown[1] == f"  rank 1: {said}"
