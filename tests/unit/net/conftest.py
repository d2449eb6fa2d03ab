"""What tests of the TCP form ask for: to run over shared memory, and over connections alone."""

from __future__ import annotations

import net_tcp_kit
import pytest


@pytest.fixture(params=[True, False], ids=["shared", "sockets"])
def shared_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the ranks that `net_tcp_kit` makes share memory."""
    monkeypatch.setattr(net_tcp_kit, "SHARED_MEMORY", request.param)
    return bool(request.param)
