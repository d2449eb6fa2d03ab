"""A ranked test that fails on one rank under mpirun ends on all of them, and mpirun fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "ranked" / "conftest.py"
MPIRUN = Path(sys.executable).with_name("mpirun")
WATCHDOG_S = 60.0

pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")

ONE_FAILS = """
def test_one_rank_fails(ranked):
    def body(group):
        if group.rank == 1:
            raise ValueError("bad lr")
        group.barrier()
    ranked.groups(body)
"""

ONE_IS_WRONG_AFTERWARDS = """
def test_one_rank_is_wrong(ranked):
    results = ranked.groups(lambda group: group.barrier() or group.rank)
    assert 1 not in results
"""

ALL_MEET = """
def test_all_meet(ranked):
    assert ranked.kind == "mpi"
    ranked.groups(lambda group: group.barrier())
"""

ONE_STAYS_AWAY = """
import time
import conftest
from mpi4py import MPI

conftest.DEADLINE_S = 0.5

def test_one_rank_stays_away(ranked):
    if MPI.COMM_WORLD.Get_rank() == 0:
        ranked.groups(lambda group: group.barrier())
    else:
        time.sleep(2)
"""


def run_under_mpi(tmp_path: Path, tests: str) -> tuple[int, str]:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_body.py").write_text(tests)
    launch = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", "2"]
    run_tests = [
        sys.executable,
        "-m",
        "pytest",
        "--with-mpi",
        "--color=no",
        "-p",
        "no:cacheprovider",
    ]
    process = subprocess.Popen(
        [*launch, *run_tests],
        cwd=tmp_path,
        env={
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        text, _ = process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # not kill: mpirun ends its ranks before itself
        text, _ = process.communicate(timeout=WATCHDOG_S)
    return process.returncode, text


def test_a_rank_that_fails_ends_the_others_test_and_not_the_next_one(tmp_path):
    begun = time.monotonic()
    status, text = run_under_mpi(tmp_path, ONE_FAILS + ALL_MEET)
    assert status != 0
    assert "rank 1 failed: ValueError: bad lr" in text, text
    assert text.count("1 failed, 1 passed") == 2, text
    assert time.monotonic() - begun < 25, "the others waited for their deadline"


def test_a_rank_whose_result_is_wrong_fails_alone_and_so_does_mpirun(tmp_path):
    status, text = run_under_mpi(tmp_path, ONE_IS_WRONG_AFTERWARDS + ALL_MEET)
    assert status != 0
    assert text.count("1 failed, 1 passed") == 1, text
    assert text.count("2 passed") == 1, text


def test_ranks_that_cannot_meet_end_the_run(tmp_path):
    status, text = run_under_mpi(tmp_path, ONE_STAYS_AWAY + ALL_MEET)
    assert status != 0
    assert "the ranks cannot make a world together" in text, text


def test_ranks_that_all_pass_end_well(tmp_path):
    status, text = run_under_mpi(tmp_path, ALL_MEET)
    assert status == 0, text
    assert text.count("1 passed") == 2, text
