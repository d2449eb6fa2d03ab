"""A gradient is a graph like any other: where it has corners, each backend must take them."""

from functools import partial
from importlib.util import find_spec

import pytest

from rlx.backends import Session
from rlx.testing import gradcheck


@pytest.fixture(params=["numpy", "jax"])
def each_backend(request, monkeypatch):
    """By it the test's sessions compute, and those of `check_gradients`."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    for module in (request.module, gradcheck):
        monkeypatch.setattr(module, "Session", partial(Session, backend=request.param))
