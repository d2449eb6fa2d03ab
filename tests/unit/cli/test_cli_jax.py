"""A job with `backend = "jax"` by the commands that a user types."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("jax")

from command_support import MODEL, result, rlx
from launching import on_each_rank
from rlx.backends import check_device
from rlx.errors import UsageError
from rlx.job.settings import BACKENDS, DEVICES

BY_JAX = ("--set", "job.backend=jax")


def test_processes_end_with_the_bits_of_one(job):
    one, two = (result(job, *BY_JAX, "-n", ranks) for ranks in (1, 2))
    assert one["params_sha256"] == two["params_sha256"]
    assert one["last_loss"] == pytest.approx(result(job)["last_loss"], rel=1e-5)


def test_bits_do_not_depend_on_cores_but_on_threads_of_xla(job):
    """A gradient that sums over many rows; with more threads XLA cuts that sum."""
    rng = np.random.default_rng(1)
    for name, width in (("x", 9), ("y", 16)):
        np.save(job.with_name(f"{name}.npy"), rng.standard_normal((20_000, width), np.float32))
    wide = MODEL.replace('"batch", 3', '"batch", 9').replace('"batch", 1', '"batch", 16')
    job.with_name("model.py").write_text(wide.replace("[3, 1]", "[9, 16]"))
    whole = (*BY_JAX, "--set", "job.batch=20000", "--set", "job.epochs=1")
    pinned, one, eight = (
        result(job, *whole, **threads)["params_sha256"]
        for threads in ({}, {"PJRT_NPROC": "1"}, {"PJRT_NPROC": "8"})
    )
    assert pinned == one
    assert one != eight


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_jax_ends_the_run_before_the_first_step(job, rank):
    blocked = f"import sys\nif rank == {rank}:\n    sys.modules['jax'] = None"
    environment = on_each_rank(job.parent, blocked)
    done = rlx("train", job, *BY_JAX, "-n", 2, **environment)
    assert done.returncode != 0
    assert f"rank {rank}" in done.stderr
    assert "pip install 'rlx[jax]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_inspect_shows_xlas_program_and_its_bytes(job):
    shown = rlx("inspect", job, *BY_JAX).stdout
    assert re.search(r"of a microbatch with batch=4: \d+ bytes of arguments, \d+ of results", shown)
    assert rlx("inspect", job, *BY_JAX, "--plan").stdout.startswith("HloModule")


def test_a_gpu_is_for_jax_and_where_there_is_none_a_run_ends_before_its_first_step(job):
    on_gpu = ("train", job, "--set", "job.device=gpu")
    done = rlx(*on_gpu)
    assert done.returncode == 2
    assert "numpy has no device 'gpu'; known: cpu" in done.stderr
    done = rlx(*on_gpu, *BY_JAX, "-n", "2", JAX_PLATFORMS="cpu")
    assert done.returncode == 2
    assert "jax finds no device 'gpu'" in done.stderr
    assert "epoch" not in done.stderr


def test_the_settings_are_those_that_backends_know():
    for backend in BACKENDS:
        check_device("cpu", backend)
    for device in DEVICES:
        check_device(device, "jax")
    with pytest.raises(UsageError, match=f"known: {', '.join(BACKENDS)}$"):
        check_device("cpu", "torch")
    with pytest.raises(UsageError, match=f"known: {', '.join(DEVICES)}$"):
        check_device("cuda", "jax")


def test_an_unknown_backend_is_refused(job):
    done = rlx("train", job, "--set", "job.backend=torch")
    assert done.returncode == 2
    assert "job.backend is one of numpy, jax; got 'torch'" in done.stderr
