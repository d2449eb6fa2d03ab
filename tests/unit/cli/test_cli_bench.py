"""`rlx bench` measures what it says it measures. No figure is asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_support import rlx
from support import clean_environment, family, parents

MPIRUN = Path(sys.executable).with_name("mpirun")
needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
QUICK = ("--sizes", "4,4K", "--seconds", "0")


def measured(*arguments: object, **environment: str) -> dict:
    """The JSON line of a measurement that must succeed."""
    done = rlx("bench", *arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(row: dict) -> None:
    """What every row of collectives says."""
    assert 0 < row["best_s"] <= row["quartiles_s"][0] <= row["median_s"] <= row["quartiles_s"][1]
    assert row["calls"] >= 9
    assert len(row["round_medians_s"]) >= 3


def test_contenders_are_measured_beside_each_other_at_every_size():
    table = measured("collectives", "-n", "2", "--transport", "tcp", "--against", "threads", *QUICK)
    places = [(row["call"], row["bytes"], row["contender"]) for row in table["rows"]]
    assert places == [
        ("all_reduce", size, name) for size in (4, 4096) for name in ("tcp", "threads")
    ]
    for own, other in zip(table["rows"][::2], table["rows"][1::2], strict=True):
        check(own)
        check(other)
        assert own["ratios"] == {"threads": own["median_s"] / other["median_s"]}
        assert own["bytes_per_s"] == own["bytes"] / own["median_s"]
        assert other["ratios"] == {}
    assert table["ranks"] == 2
    assert table["lost"] == {}
    assert "numpy" in table["machine"]


def test_the_other_collectives_and_a_barrier_without_a_size():
    table = measured("collectives", "-n", "3", "--transport", "threads", "--calls", "all", *QUICK)
    barriers = [row for row in table["rows"] if row["call"] == "barrier"]
    assert [row["bytes_per_s"] for row in barriers] == [None]
    assert {row["call"] for row in table["rows"]} == {
        *("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier")
    }


def test_what_a_person_reads_and_a_baseline_that_is_not_there(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    arguments = ("-n", "2", "--transport", "threads", "--against", "gloo", *QUICK)
    done = rlx("bench", "collectives", *arguments, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "gloo: not installed: No module named 'torch'" in done.stdout.splitlines()
    assert "4 KiB  threads" in done.stdout
    assert "no garbage collection while timing" in done.stdout
    alone = rlx("bench", "collectives", "--transport", "gloo", *QUICK, PYTHONPATH=path)
    assert alone.returncode == 2
    assert "nothing could be measured: gloo: not installed" in alone.stderr
    assert "Traceback" not in alone.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("collectives", "--transport", "carrier"), "there is no contender 'carrier'"),
        (("collectives", "--against", "ncll"), "there is no contender 'ncll'"),
        (("collectives", "--calls", "all_reduces"), "there is no 'all_reduces'"),
        (("collectives", "-n", "0"), "-n is at least 1"),
        (("links", "-n", "1", "--transport", "threads"), "links are between ranks"),
        (("collectives", "--sizes", "4X"), "is no size"),
        (("collectives", "--seconds", "nan"), "is no number of seconds"),
        (("startup", "-n", "2"), "bench takes no '-n'"),
        (("step", "--models", "A,E"), "there is no 'E'; known: A, B, C, D"),
        (("step", "--batch", "0"), "'0' is no whole number from 1"),
        (("step", "--models", "A", "--layers", "3"), "--layers is for model D"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, text):
    done = rlx("bench", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_links_are_measured_pair_by_pair_and_the_slowest_is_named():
    table = measured("links", "-n", "3", "--transport", "tcp", "--sizes", "4,64K", "--seconds", "0")
    assert len(table["rows"]) == 2 * 6
    for size in (4, 65536):
        rows = [row for row in table["rows"] if row["bytes"] == size]
        (slowest,) = [row for row in rows if row["slowest"]]
        medians = [row["round_trip"]["median_s"] for row in rows]
        assert slowest["round_trip"]["median_s"] == max(medians)
        assert all((row["latency_s"] is None) == (size != 4) for row in rows)
    done = rlx("bench", "links", "-n", "2", "--transport", "threads", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "slowest: rank " in done.stdout
    assert "threads, 4 B: latency, us" in done.stdout


@needs_mpirun
def test_the_goals_are_a_row_for_each_comparison_and_a_column_for_each_size():
    table = measured("goals", "-n", "2", "--sizes", "4", "--seconds", "0")
    pairs = [(row["contender"], row["baseline"]) for row in table["rows"]]
    assert ("tcp", "mpi-native-tcp") in pairs
    assert ("tcp", "gloo") in pairs
    assert ("tcp+shm", "mpi-native") in pairs
    assert ("threads", "mpi-native") in pairs
    assert ("mpi", "mpi-native") in pairs
    for row in table["rows"]:
        there = not {row["contender"], row["baseline"]} & set(table["lost"])
        assert (row["ratio"] is not None) == there
        if there:
            own, other = row["contender_calls"], row["baseline_calls"]
            assert row["ratio"] == own["median_s"] / other["median_s"]
    assert {"tcp", "threads", "mpi", "mpi-native", "mpi-native-tcp"} <= set(table["contenders"])


def under_mpirun(*arguments: str) -> dict:
    flags = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    command_line = [MPIRUN, *flags, "-n", "2", sys.executable, "-m", "rlx", "bench", *arguments]
    done = subprocess.run(
        command_line, env=clean_environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    lines = [line.strip("\0") for line in done.stdout.splitlines()]
    (found,) = [line for line in lines if line.startswith("{")]
    return json.loads(found)


@needs_mpirun
def test_the_ranks_of_an_mpirun_measure_themselves():
    table = under_mpirun("collectives", "--against", "mpi", *QUICK, "--json")
    assert [row["contender"] for row in table["rows"]] == ["mpi", "mpi-native"] * 2
    for row in table["rows"]:
        check(row)
    assert "MPI" in table["contenders"]["mpi"]
    links = under_mpirun("links", *QUICK, "--json")
    assert {(row["from"], row["to"]) for row in links["rows"]} == {(0, 1), (1, 0)}


@needs_mpirun
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_of_a_measurement_that_is_ended(tmp_path, number, status):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rlx", "bench", "collectives", "--transport", "tcp,threads"),
            *("--against", "mpi", "--sizes", "4,4M", "--seconds", "1000"),
        ],
        env=clean_environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    # Itself, two ranks over TCP, a process of threads, mpirun and its two ranks.
    while len(family(process.pid)) < 7 and time.monotonic() < deadline:
        time.sleep(0.05)
    members = family(process.pid)
    assert len(members) >= 7
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    deadline = time.monotonic() + 20
    while (left := members & set(parents())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob("rlx-bench-*"))


def test_a_step_is_timed_turn_by_turn():
    table = measured("step", "--models", "A", "--seconds", "0", "--batch", "3")
    assert table["rows"][0]["name"] == "A: linear regression, 4x3 @ 3x1, batch 3, rlx"
    assert len(table["rows"][0]["seconds"]) >= 3


def test_fresh_processes_say_when_their_first_step_was_done_and_what_they_held():
    rows = measured("first", "--models", "A", "--repeats", "2")["rows"]
    assert rows[0]["library"] == "rlx"
    for row in rows:
        assert all(0.01 < seconds < 60 for seconds in row["first_step_s"])
        for loaded, peak in zip(row["loaded_bytes"], row["peak_bytes"], strict=True):
            assert 10 << 20 < loaded <= peak
    done = rlx("bench", "first", "--models", "A", "--repeats", "1")
    assert "ms to the first step" in done.stdout


def test_startup_compares_with_numpy():
    done = rlx("bench", "startup")
    assert done.returncode == 0, done.stderr
    assert "import numpy" in done.stdout
    assert "to import numpy" in done.stdout
