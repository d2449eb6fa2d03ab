"""An error of one rank under each host of ranks: mpirun, the launcher, pytest with threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rlx.autodiff import grad_with_loss
from rlx.dist import DataRef, TrainSpec, WeightRef, run_train
from rlx.errors import RemoteError
from rlx.ir import Graph
from rlx.testing import run_ranks
from support import clean_environment

MPIRUN = Path(sys.executable).with_name("mpirun")
needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
WATCHDOG_S = 40.0

PROGRAM = """
import os, signal, sys
from rlx.group import ProcessGroup
from rlx.net import MpiTransport

with ProcessGroup(MpiTransport.from_comm()) as group:
    group.barrier()
    if sys.argv[1] == "raise" and group.rank == 0:
        raise ValueError("Test")
    if sys.argv[1] == "die" and group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()
"""

MODEL = """
def loss():
    raise ValueError("Test")
"""

JOB = """
[job]
graph = "model.py:loss"
data = { x = "x.npy" }
epochs = 1
batch = 4

[optimizer]
lr = 0.1
"""


def endless_spec():
    graph = Graph("line")
    x, w = graph.input("x", ["batch", 2]), graph.param("w", [2, 1])
    graph.set_outputs([(x @ w).mean()])
    return TrainSpec(
        graph=grad_with_loss(graph, ["w"]),
        params=[WeightRef("w", "init:zeros")],
        data=[DataRef("x", "x", 2)],
        lr_per_epoch=[0.1] * 1000,
        batch=2,
        global_batch=8,
        shuffle_seed=1,
    )


SPEC = endless_spec()


def ended(command, folder):
    """Status, standard error, and seconds. A job that does not end is ended, and fails the test."""
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    begun_s = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env=clean_environment(**allow),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, errors = process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # not kill: mpirun ends its ranks before itself
        _, errors = process.communicate(timeout=WATCHDOG_S)
        pytest.fail(f"the job did not end: {errors}")
    return process.returncode, errors.replace("\0", ""), time.monotonic() - begun_s


def under_mpirun(folder, how):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    return ended(
        [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", 2, sys.executable, program, how],
        folder,
    )


@needs_mpirun
def test_under_mpirun_an_exception_is_told_once_with_its_rank_and_the_job_fails(tmp_path):
    status, errors, seconds = under_mpirun(tmp_path, "raise")
    assert status not in (0, None)
    assert errors.count('raise ValueError("Test")') == 1, errors
    # Under load mpirun may put a line of its own between any two.
    assert "ValueError: Test\n" in errors
    assert "on rank 0 of 2" in errors
    assert seconds < 10 + WATCHDOG_S / 4


@needs_mpirun
def test_under_mpirun_a_killed_rank_ends_the_job_and_the_signal_is_told(tmp_path):
    status, errors, seconds = under_mpirun(tmp_path, "die")
    assert status == 128 + signal.SIGKILL, errors
    assert "rank 1" in errors
    assert "signal 9" in errors
    assert seconds < 10 + WATCHDOG_S / 4


@needs_mpirun
def test_under_mpirun_the_same_program_ends_well_without_a_fault(tmp_path):
    """The counter-test."""
    status, errors, _ = under_mpirun(tmp_path, "none")
    assert status == 0, errors


@pytest.fixture
def job(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.toml").write_text(JOB)
    np.save(tmp_path / "x.npy", np.ones((64, 3), np.float32))
    return tmp_path


def test_with_the_launcher_a_graph_that_raises_is_told_once_with_its_rank(job):
    status, errors, seconds = ended(
        [sys.executable, "-m", "rlx", "train", "job.toml", "-n", 2], job
    )
    assert status not in (0, None)
    assert errors.count('raise ValueError("Test")') == 1, errors
    assert "rlx: error: rank 0: " in errors
    assert seconds < 10 + WATCHDOG_S / 4


def test_an_observer_that_raises_ends_the_training_of_the_other_ranks_with_its_traceback():
    heard = []

    def observer(progress):
        raise ValueError("Test")

    def body(group):
        try:
            rows = {"x": np.ones((8, 2), np.float32)}
            own = observer if group.rank == 0 else None
            run_train(SPEC, group, resolve=rows.__getitem__, observer=own)
        except RemoteError as error:
            heard.append((error.rank, error.kind, error.message, error.traceback))
            raise

    with pytest.raises(ValueError, match="Test") as caught:
        run_ranks(2, body)
    assert caught.value.__notes__ == ["rank 0 of 2 failed first"]
    ((rank, kind, message, trace),) = heard
    assert (rank, kind, message) == (0, "ValueError", "Test")
    assert trace.count('raise ValueError("Test")') == 1


def test_with_pytest_as_the_host_a_failing_rank_fails_the_test_with_one_traceback(tmp_path):
    (tmp_path / "test_body.py").write_text(
        "from rlx.testing import run_ranks\n\n"
        "def body(group):\n"
        "    if group.rank == 0:\n"
        "        raise ValueError('Test')\n"
        "    group.barrier()\n\n"
        "def test_ranks():\n"
        "    run_ranks(2, body)\n"
    )
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=native", "-q"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert done.returncode == 1
    assert done.stdout.count("raise ValueError('Test')") == 1, done.stdout
    assert "rank 0 of 2 failed first" in done.stdout
    assert time.monotonic() - begun_s < 10 + WATCHDOG_S / 4
