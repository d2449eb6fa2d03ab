"""`rlx bench` measures what it says it measures. No figure is asserted."""

from __future__ import annotations

import json

from command_support import rlx


def test_collectives_between_two_processes_are_measured_at_every_size():
    done = rlx("bench", "collectives", "-n", "2", "--json")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    names = [row["name"] for row in table["rows"]]
    assert names == [
        f"all_reduce {size} B, 2 ranks, tcp" for size in (4, 4096, 262144, 4194304, 67108864)
    ]
    for row in table["rows"]:
        assert len(row["seconds"]) >= 5
        assert min(row["seconds"]) <= row["median_s"] <= max(row["seconds"])
        assert min(row["seconds"]) > 0
    assert "numpy" in table["machine"]


def test_startup_compares_with_numpy():
    done = rlx("bench", "startup")
    assert done.returncode == 0, done.stderr
    assert "import numpy" in done.stdout
    assert "to import numpy" in done.stdout
    refused = rlx("bench", "startup", "-n", "2")
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr
