"""Jobs beside each other on one host."""

from __future__ import annotations

import json
import subprocess
import sys

from command_support import SHORT, result
from support import DIGITS, clean_environment


def test_sixteen_processes_and_another_job_beside_them_give_the_bits_of_one_rank():
    def begun(ranks: int, *more: str) -> subprocess.Popen:
        arguments = ["train", str(DIGITS), *SHORT, "--json", *more, "-n", str(ranks)]
        return subprocess.Popen(
            [sys.executable, "-m", "rlx", *arguments],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    other = ("--set", "job.shuffle_seed=2")
    launchers = [begun(16), begun(2, *other)]
    outputs = [launcher.communicate(timeout=110) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    many, few = (json.loads(output) for output, _ in outputs)
    assert (many["world_size"], few["world_size"]) == (16, 2)
    assert many["params_sha256"] == result(DIGITS, *SHORT)["params_sha256"]
    assert few["params_sha256"] == result(DIGITS, *SHORT, *other)["params_sha256"]
    assert many["params_sha256"] != few["params_sha256"]
