"""The laws of the transports, on every form."""

from __future__ import annotations

import pytest

from rlx.net import MpiTransport
from rlx.testing.laws import LAWS, huge_message


@pytest.mark.parametrize("text", LAWS)
def test_the_law_holds(ranked, text):
    one = LAWS[text]
    if ranked.world_size >= one.least_ranks:
        ranked.transports(one.body)


@pytest.mark.parametrize("size_bytes", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 1])
def test_a_message_in_pieces_arrives_whole(ranked, size_bytes, monkeypatch):
    """The limit of one MPI message is forced down to 1 MiB; the other forms have none."""
    monkeypatch.setattr("rlx.net.mpi.CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(MpiTransport.from_comm.__func__, "__kwdefaults__", {"chunk_bytes": 1 << 20})
    ranked.transports(lambda transport: huge_message(transport, size_bytes=size_bytes))
