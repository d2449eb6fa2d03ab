"""The laws of the transports, on every form."""

from __future__ import annotations

import pytest

from rlx.testing.laws import LAWS, huge_message


@pytest.mark.parametrize("text", LAWS)
def test_the_law_holds(ranked, text):
    one = LAWS[text]
    if ranked.world_size >= one.least_ranks:
        ranked.transports(one.body)


@pytest.mark.parametrize("size_bytes", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 1])
def test_a_message_in_pieces_arrives_whole(ranked, size_bytes):
    ranked.transports(
        lambda transport: huge_message(transport, size_bytes=size_bytes), mpi_chunk_bytes=1 << 20
    )
