"""What a person types wrong, and what stands wrong in a job: one clear message each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from command_support import JOB, MODEL, result, rlx
from rlx.cli import main
from rlx.job.blas import BLAS_VARIABLES, XLA_VARIABLE
from support import clean_environment, heed_signals

MORE = """

def speaks_twice():
    raise ValueError("first\\nsecond")


def wants_something(x):
    return x


def stop():
    import time

    open("started", "w").close()
    for _ in range(6000):  # Python acts on a signal between two calls
        time.sleep(0.01)
"""


@pytest.fixture
def job(job):
    """That job, with models that fail beside its own."""
    job.with_name("model.py").write_text(MODEL + MORE)
    job.with_name("syntax.py").write_text("x = 1\nthis is no Python\n")
    job.with_name("imports.py").write_text("import no_such_module\n")
    return job


def message_of(*arguments, status: int = 2, lines: int = 1, **environment: str) -> str:
    """The message of a command that must fail, in so many lines and no traceback."""
    done = rlx(*arguments, **environment)
    assert done.returncode == status, (done.returncode, done.stderr)
    assert not done.stdout
    assert done.stderr.startswith("rlx: error: ")
    assert len(done.stderr.splitlines()) == lines, done.stderr
    return done.stderr


def told_here(capsys, *arguments, status: int = 2, **environment: str) -> str:
    """The one line of a command that must fail, and does so before it starts anything: run in this
    process, since starting Python is most of what it would cost."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(clean_environment()):
            patch.delenv(name)
        for name in (*BLAS_VARIABLES, XLA_VARIABLE):
            patch.setenv(name, "1")
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            ended: object = main([str(one) for one in arguments])
        except SystemExit as end:
            ended = end.code
    assert ended == status
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("rlx: error: ")
    assert len(shown.err.splitlines()) == 1
    return shown.err


# Flags.


def test_nothing_at_all_is_pointed_to_the_help():
    assert "COMMAND; see rlx --help" in message_of()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trian"], "invalid choice: 'trian' (choose from"),
        (["train"], "JOB.toml; see rlx train --help"),
        (["train", "JOB", "--jsno"], "train takes no '--jsno', did you mean --json?"),
        (["train", "JOB", "--sets=a.b=1"], "train takes no '--sets=a.b=1', did you mean --set?"),
        (["train", "JOB", "--js"], "train takes no '--js'"),
        (["train", "JOB", "another.toml"], "train takes no 'another.toml'"),
        (["train", "JOB", "-n"], "expected one argument; see rlx train --help"),
        (["train", "JOB", "-n", "two"], "invalid int value: 'two'"),
        (["train", "JOB", "-n", "0"], "-n is at least 1; got 0"),
        (["train", "JOB", "-n", "-1"], "-n is at least 1; got -1"),
        (["train", "JOB", "--transport", "tpc"], "invalid choice: 'tpc'"),
        (["train", "JOB", "--set"], "expected one argument"),
        (["train", "JOB", "--set", "epochs"], "--set takes section.key=value"),
        (["bench"], "see rlx bench --help"),
        (["bench", "collectives", "-n", "0"], "-n is at least 1; got 0"),
    ],
)
def test_a_wrong_word_is_one_line_that_says_where_to_look(job, capsys, arguments, text):
    given = [str(job) if word == "JOB" else word for word in arguments]
    assert text in told_here(capsys, *given)


def test_the_help_names_the_exit_statuses_and_every_setting_its_default():
    whole = " ".join(rlx("--help").stdout.split())
    assert "128 + N ended by signal N" in whole
    assert "measure how long" in whole
    text = rlx("train", "--help").stdout
    for said in ("(default 127.0.0.1:0)", "(required)", "(default false)", "(default sgd)"):
        assert said in text


# Models.


@pytest.mark.parametrize(
    ("graph", "texts"),
    [
        ("syntax.py:loss", ["syntax.py:2: this is no Python\n", "  SyntaxError: "]),
        ("imports.py:loss", ["imports.py:1: import no_such_module\n", "  ModuleNotFoundError: "]),
        ("model.py:wants_something", ["missing 1 required positional argument"]),
    ],
)
def test_a_model_that_fails_is_shown_with_its_line(job, graph, texts):
    message = message_of("train", job, "--set", f"job.graph={graph}", lines=2)
    for text in texts:
        assert text in message


def test_the_lines_of_a_models_message_stay_below_its_place(job):
    message = message_of("train", job, "--set", "job.graph=model.py:speaks_twice", lines=3)
    assert message.endswith("\n  ValueError: first\n  second\n")


def test_an_interrupt_in_the_middle_of_one_rank_is_one_word(job):
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx", "train", str(job), "--set", "job.graph=model.py:stop"],
        cwd=job.parent,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )
    while not (job.parent / "started").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "rlx: interrupted\n"


# Data, folders and places.


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_with_json_an_error_leaves_standard_output_empty(job, ranks):
    (job.parent / "x.npy").unlink()
    message = message_of("train", job, "-n", ranks, "--json", status=1, lines=1 + (ranks != "1"))
    assert "x.npy" in message
    assert "No such file" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named_before_training(job):
    folder = job.parent / "locked"
    folder.mkdir(mode=0o555)
    message = message_of("train", job, "--save", folder / "saved.safetensors")
    assert "no file can be written there: Permission denied" in message


def test_a_folder_that_takes_no_file_is_named_before_training(job, capsys):
    message = told_here(capsys, "train", job, "--save", "/proc/saved.safetensors")
    assert "no file can be written there" in message
    assert "that is a folder" in told_here(capsys, "train", job, "--save", job.parent)


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("x.npz", "x.safetensors"),
        ("x.safetensor", "x.safetensors"),
        ("x", "x.safetensors"),
        (".safetensors", ".safetensors.safetensors"),
    ],
)
def test_a_name_to_save_under_that_says_another_format_is_refused(job, capsys, name, better):
    message = told_here(capsys, "train", job, "--save", job.parent / name)
    assert f"written as safetensors, and read again by that ending; call the file {better}" in (
        message
    )
    assert not (job.parent / name).exists()


def test_a_name_to_save_under_may_be_in_capitals(job):
    result(job, "--save", job.parent / "X.SafeTensors")
    assert (job.parent / "X.SafeTensors").stat().st_size


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "input 'x': "),
        ({"job.data": '{x="y.npy", y="none.npy"}'}, "input 'y': "),
        ({"job.data": '{x="y.npy", y="y.npy"}', "params.w": "none.npy"}, "parameter 'w': "),
    ],
)
def test_a_missing_file_is_named_with_what_it_was_for(job, capsys, change, text):
    np.save(job.parent / "y.npy", np.zeros((10, 3), np.float32))
    (job.parent / "x.npy").unlink()
    settings = [word for key, value in change.items() for word in ("--set", f"{key}={value}")]
    message = told_here(capsys, "train", job, *settings, status=1)
    assert message.startswith(f"rlx: error: {text}'/")
    assert "No such file or directory" in message


@pytest.mark.parametrize(
    ("coordinator", "status", "text"),
    [
        ("head", 2, "net.coordinator='head': expected host:port"),
        ("127.0.0.1:99999", 2, "net.coordinator='127.0.0.1:99999': the port is a number"),
        ("no-such-host.invalid:0", 1, "give an address of this machine"),
        ("192.0.2.1:0", 1, "192.0.2.1:0: Cannot assign requested address; give an address"),
    ],
)
def test_a_coordinator_that_cannot_be_is_explained(job, capsys, coordinator, status, text):
    given = ("--set", f"net.coordinator={coordinator}")
    assert text in told_here(capsys, "train", job, "-n", "2", *given, status=status)


def test_a_taken_port_of_another_loopback_address_is_named_as_it_was_given(job):
    with socket.create_server(("127.0.0.2", 0)) as occupied:
        place = f"127.0.0.2:{occupied.getsockname()[1]}"
        given = ("--set", f"net.coordinator={place}")
        assert f"cannot listen on {place}:" in message_of("train", job, "-n", "2", *given, status=1)
        # By hand there is no launcher: rank 0 itself finds the port taken, and rank 1 a stranger.
        by_hand = {"RLX_RANK": "0", "RLX_WORLD_SIZE": "2", "RLX_COORDINATOR": place}
        assert place in message_of("train", job, status=1, **by_hand)
    assert result(job, "-n", "2", *given)["world_size"] == 2


@pytest.mark.parametrize("coordinator", ["[::1]:0", "localhost:0"])
def test_every_way_to_write_this_machine_works(job, coordinator):
    if coordinator.startswith("[") and not has_ipv6():
        pytest.skip("there is no IPv6 here")
    done = result(job, "-n", "2", "--set", f"net.coordinator={coordinator}")
    assert (done["world_size"], done["transport"]) == (2, "tcp")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_two_ranks_start_where_no_name_can_be_looked_up(job):
    """Not even the machine's own: whoever looks a name up here fails."""
    place = job.parent / "nameless"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import socket\n"
        "real = socket.getaddrinfo\n"
        "def refuse(*names, **options):\n"
        "    raise socket.gaierror(-2, 'Name or service not known')\n"
        "def look_up(host, *more, **options):\n"
        "    literal = host is None or host.replace('.', '').isdigit() or ':' in host\n"
        "    return (real if literal else refuse)(host, *more, **options)\n"
        "socket.getaddrinfo = look_up\n"
        "socket.gethostbyname = socket.gethostbyaddr = socket.getfqdn = refuse\n"
    )
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert result(job, "-n", "2", PYTHONPATH=path)["world_size"] == 2
    # The stub is at work: a rank that has to look a name up is told that it cannot.
    by_hand = {"RLX_RANK": "1", "RLX_WORLD_SIZE": "2", "RLX_COORDINATOR": "localhost:1"}
    message = message_of("train", job, status=1, PYTHONPATH=path, **by_hand)
    assert "localhost:1 cannot be resolved" in message


# What a launcher says.


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "4", "PMI_RANK": "0"},
    ],
    ids=["openmpi", "pmi"],
)
def test_a_world_of_four_that_mpi_sees_as_one_writes_nothing(job, environment):
    """Also for rank 0, which saves, and for a job that asks for MPI and for four itself."""
    target = job.parent / "never.safetensors"
    job.write_text(JOB + '\n[net]\ntransport = "mpi"\n')
    before = set(job.parent.iterdir())
    for more in ((), ("-n", "4"))[: 1 + ("PMI_SIZE" in environment)]:
        message = message_of("train", job, *more, "--save", target, status=1, **environment)
        assert "launcher says 4, MPI says 1" in message
    assert set(job.parent.iterdir()) == before


def test_mpi_alone_is_a_world_of_one_over_mpi(job):
    pytest.importorskip("mpi4py")
    done = result(job, "--transport", "mpi")
    assert (done["world_size"], done["transport"]) == (1, "mpi")
    assert done["params_sha256"] == result(job)["params_sha256"]


def test_a_world_of_one_says_what_moved_its_bytes(job):
    for more in (("--transport", "tcp"), ("--transport", "threads")):
        assert result(job, *more)["transport"] == "memory"
    assert rlx("train", job).stdout.startswith("trained on 1 rank: loss ")
    assert result(job, "-n", "2", "--transport", "threads")["transport"] == "threads"


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "8"}, "SLURM_PROCID"),
        ({"SLURM_TASKS_PER_NODE": "2(x"}, "SLURM_TASKS_PER_NODE='2(x'"),
        ({"SLURM_TASKS_PER_NODE": "x"}, "SLURM_TASKS_PER_NODE='x'"),
        ({"SLURM_NTASKS": "2", "SLURM_NODELIST": "n[1"}, "SLURM_NODELIST='n[1'"),
        ({}, "SLURM_NTASKS is missing"),
    ],
)
def test_a_slurm_step_that_cannot_be_read_is_one_line_with_the_variable(
    job, capsys, environment, text
):
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", **environment}
    assert text in told_here(capsys, "train", job, **step)
