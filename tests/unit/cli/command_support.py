"""Running the `rlx` command as a user does, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from support import clean_environment

SHORT = ["--set", "job.epochs=1"]

MODEL = """
from rlx.ir import Graph


def loss():
    graph = Graph("line")
    x = graph.input("x", ["batch", 3])
    y = graph.input("y", ["batch", 1])
    w = graph.param("w", [3, 1])
    error = x @ w - y
    graph.set_outputs([(error * error).mean()])
    return graph


def wrong():
    graph = Graph("wrong")
    return graph.input("x", ["batch", 3]) @ graph.input("y", [4, 1])


def crash():
    return {}["missing"]


not_a_graph = 3
"""

JOB = """
[job]
graph = "model.py:loss"
data = { x = "x.npy", y = "y.npy" }
epochs = 2
batch = 4

[optimizer]
lr = 0.1
"""


def rlx(*arguments: object, timeout_s: float = 60, **environment: str):
    """`rlx ARGUMENTS`, with what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "rlx", *(str(one) for one in arguments)],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def result(*arguments: object, **environment: str) -> dict:
    """The JSON line of a run that must succeed."""
    done = rlx("train", *arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1, done.stdout
    return json.loads(lines[0])
