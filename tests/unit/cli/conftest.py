"""The job that tests of the command run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command_support import JOB, MODEL


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A line through ten rows, in a folder of its own."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.toml").write_text(JOB)
    rows = np.arange(30, dtype=np.float32).reshape(10, 3) / 30
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", rows.sum(1, keepdims=True))
    return tmp_path / "job.toml"
