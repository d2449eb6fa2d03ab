"""Worlds that are measured: real ranks, which sleep in between, and of which nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.bench import StartedWorlds, measure_collectives
from rlx.bench.stages import ContenderLost
from rlx.bench.worlds import World, WorldLost
from rlx.net import Deadline
from rlx.testing.leftovers import nothing_left_open
from support import clean_environment, family

needs_mpirun = pytest.mark.skipif(
    not Path(sys.executable).with_name("mpirun").exists(), reason="no mpirun beside this Python"
)
ASK = {"do": "collective", "contender": "tcp", "call": "barrier", "bytes": 0, "warm_ups": 0}


def started(*names: str, ranks: int = 2, **environment: str) -> StartedWorlds:
    return StartedWorlds(names, ranks, clean_environment(**environment))


def cpu_ticks(pids: set[int]) -> int:
    """Clock ticks that processes have used so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields)


def test_a_world_answers_with_the_seconds_of_each_call_and_leaves_nothing():
    with nothing_left_open(), started("tcp", "threads", ranks=3) as stage:
        assert stage.lost == {}
        for name in ("tcp", "threads"):
            for call in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
                seconds = stage.collective(name, call, 4096, 1, 4)
                assert len(seconds) == 4
                assert min(seconds) > 0
            assert len(stage.link(name, (2, 0), 4096, 1, 3)) == 3


@needs_mpirun
def test_mpi_and_its_own_calls_live_in_one_launch():
    with nothing_left_open(), started("mpi", "mpi-native", "mpi-native-tcp") as stage:
        assert stage.lost == {}
        assert stage.world_of("mpi") is stage.world_of("mpi-native")
        assert stage.world_of("mpi") is not stage.world_of("mpi-native-tcp")
        for name in ("mpi", "mpi-native", "mpi-native-tcp"):
            for call in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
                assert len(stage.collective(name, call, 4096, 1, 4)) == 4
            assert len(stage.link(name, (0, 1), 4096, 1, 3)) == 3


@needs_mpirun
def test_ranks_that_wait_for_their_turn_take_no_time_from_those_who_have_it():
    with started("mpi", "mpi-native", "tcp") as stage:
        for name in stage.about:
            stage.collective(name, "all_reduce", 4096, 1, 3)
        waiting = family(stage.world_of("mpi").pids[0])
        assert len(waiting) >= 3  # mpirun and its ranks
        before = cpu_ticks(waiting)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            stage.collective("tcp", "all_reduce", 4096, 1, 50)
        idle = cpu_ticks(waiting) - before
        stage.collective("mpi-native", "all_reduce", 1 << 20, 1, 400)
        busy = cpu_ticks(waiting) - before - idle
    # mpirun looks around now and then; two ranks that polled would have used up to 200 ticks.
    assert idle <= 10
    assert busy > idle


def test_a_rank_that_dies_is_reported_with_its_signal_and_the_rest_is_measured():
    with nothing_left_open(), started("tcp", "threads") as stage:
        os.kill(stage.world_of("tcp").pids[1], signal.SIGKILL)
        with pytest.raises(ContenderLost, match="tcp: "):
            stage.collective("tcp", "all_reduce", 4, 1, 3)
        assert "SIGKILL" in stage.lost["tcp"] or "rank 1" in stage.lost["tcp"]
        run = measure_collectives(stage, ["tcp", "threads"], sizes=[4], seconds=0)
        assert {one.contender for one in run.figures} == {"threads"}
        assert run.lost.keys() == {"tcp"}


def test_a_rank_that_is_frozen_is_given_up_and_ended(tmp_path):
    with nothing_left_open():
        world = World.start("tcp", ["tcp"], 2, tmp_path, clean_environment())
        assert len(world.ask_all({**ASK, "repeats": 2})) == 2
        os.kill(world.pids[0], signal.SIGSTOP)
        with pytest.raises(WorldLost, match=r"no answer within 0\.5 s"):
            world.ask_all({**ASK, "repeats": 2}, Deadline(0.5))
        world.close()
    assert not list(tmp_path.glob("*.socket"))


def test_a_call_that_fails_on_the_ranks_is_their_worlds_end_with_their_words(tmp_path):
    with nothing_left_open():
        world = World.start("threads", ["threads"], 2, tmp_path, clean_environment())
        with pytest.raises(WorldLost, match="KeyError: 'unheard of'"):
            world.ask_all({**ASK, "contender": "unheard of", "repeats": 1})


def test_a_program_that_cannot_start_is_reported_with_its_last_words(tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemError('this numpy is broken')")
    with nothing_left_open(), started("threads", PYTHONPATH=str(tmp_path)) as stage:
        assert "this numpy is broken" in stage.lost["threads"]
        assert stage.about == {}


def test_what_is_not_installed_is_said(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    stub = tmp_path / "mpi4py"
    stub.mkdir()
    (stub / "__init__.py").write_text("raise ImportError('no mpi4py here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with nothing_left_open(), started("gloo", "mpi-native", "threads", PYTHONPATH=path) as stage:
        assert stage.lost["gloo"] == "not installed: No module named 'torch'"
        assert "mpirun" in stage.lost["mpi-native"] or "no mpi4py" in stage.lost["mpi-native"]
        assert stage.about.keys() == {"threads"}


def test_gloo_is_measured_where_torch_is_installed():
    from importlib.util import find_spec

    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with nothing_left_open(), started("gloo") as stage:
        assert stage.lost == {}
        for call in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
            assert len(stage.collective("gloo", call, 4096, 1, 4)) == 4
        assert len(stage.link("gloo", (1, 0), 4096, 1, 3)) == 3


def test_the_room_loads_neither_torch_nor_mpi():
    code = (
        "import sys, rlx, rlx.bench\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules)\n"
        "import rlx.bench.rank_main\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
