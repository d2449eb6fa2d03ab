"""Jobs launched from scripts, as people write them: without a main guard, and interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from launching import ENDLESS, all_gone, job_in
from rlx.errors import LaunchError
from rlx.job import launch
from support import clean_environment, family, heed_signals

SCRIPT = """
import multiprocessing
import sys

multiprocessing.set_start_method("spawn")
print("begun", flush=True)

from rlx.job import launch

result = launch(sys.argv[1], 2, settings=sys.argv[2:])
print(result["world_size"], result["transport"], flush=True)
"""


@pytest.fixture
def job(tmp_path):
    return job_in(tmp_path)


def script(job, *settings: str) -> subprocess.Popen:
    path = job.parent / "script.py"
    path.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(path), str(job), *settings],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )


def test_a_script_without_a_main_guard_runs_once_and_gets_the_result(job):
    output, errors = script(job).communicate(timeout=60)
    assert output == "begun\n2 tcp\n"
    assert errors.startswith("epoch 1/1")
    assert "params_sha256" not in errors


def test_one_rank_gives_the_bits_of_two_and_settings_and_a_file_are_taken(job, capfd):
    target = job.parent / "saved.safetensors"
    two = launch(job, 2, settings=["job.epochs=2"], save=target)
    one = launch(job, 1, settings=["job.epochs=2"])
    assert (one["transport"], two["transport"]) == ("memory", "tcp")
    assert one["params_sha256"] == two["params_sha256"]
    assert len(two["losses"]) == 2
    assert target.exists()


@pytest.mark.parametrize(
    ("settings", "ranks", "status", "text"),
    [
        (["job.graph=model.py:leave"], 2, 3, "rank 0: the process ended with status 3"),
        (["job.epoch=1"], 2, 2, "did you mean 'epochs'?"),
        ([], 0, 2, "-n is at least 1"),
    ],
)
def test_a_job_that_fails_raises_with_its_status_and_its_words(job, settings, ranks, status, text):
    with pytest.raises(LaunchError, match="ended with status") as caught:
        launch(job, ranks, settings=settings)
    assert caught.value.status == status
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) < 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_script_that_is_ended_takes_the_job_with_it(job, number):
    process = script(job, ENDLESS[1])
    while "epoch 1/" not in process.stderr.readline():
        assert process.poll() is None
    members = family(process.pid) - {process.pid}
    assert len(members) == 3
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert all_gone(members)
