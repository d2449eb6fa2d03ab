"""What ranks compute with: shown, recorded, and compared before a run, with ranks that differ."""

from __future__ import annotations

import json

import pytest

from command_support import SHORT, result, rlx
from launching import on_each_rank
from rlx.backends import fingerprint
from support import DIGITS

STRICT = ("--set", "job.strict=true")


def _facts(*options: str, **environment: str) -> dict[str, str]:
    done = rlx("fingerprint", "--json", *options, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _other_kernels() -> str:
    """A model of CPU whose kernels OpenBLAS can take here, and does not."""
    facts = _facts()
    if not facts["BLAS"].startswith("openblas") or facts["architecture"] != "x86_64":
        pytest.skip("only OpenBLAS, on x86-64, takes other kernels by a variable")
    return "Sandybridge" if facts["BLAS kernels"] == "Haswell" else "Haswell"


def _changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]} - {"digest"}


def test_it_is_printed_as_lines_and_as_json():
    facts = _facts()
    done = rlx("fingerprint")
    assert done.stdout.startswith("backend ")
    assert all(f"{value}\n" in done.stdout for value in facts.values())
    assert "unknown" not in facts.values()
    assert len(facts["digest"]) == 16


def test_it_changes_with_what_bits_depend_on_and_with_nothing_else():
    facts = _facts()
    assert _facts(PYTHONHASHSEED="5", RLX_JOB_EPOCHS="3") == facts
    more = _facts(OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2")
    assert _changed(facts, more) == {"BLAS threads"}
    assert more["digest"] != facts["digest"]
    kernels = _other_kernels()
    assert _changed(facts, _facts(OPENBLAS_CORETYPE=kernels)) == {"BLAS kernels"}
    *_, newest = facts["CPU features"].split()
    fewer = _facts(NPY_DISABLE_CPU_FEATURES=newest)
    assert _changed(facts, fewer) == {"CPU features"}


def test_a_result_records_it():
    assert result(DIGITS, *SHORT)["fingerprint"] == _facts()["digest"]
    more = result(DIGITS, *SHORT, OPENBLAS_NUM_THREADS="2")
    assert more["fingerprint"] == _facts(OPENBLAS_NUM_THREADS="2")["digest"]
    assert more["fingerprint"] != _facts()["digest"]


def test_ranks_that_differ_are_a_warning_with_both_sides_and_the_run_goes_on(tmp_path):
    kernels = _other_kernels()
    code = f"if rank == 1: os.environ['OPENBLAS_CORETYPE'] = {kernels!r}"
    done = rlx("train", DIGITS, *SHORT, "-n", "3", "--json", **on_each_rank(tmp_path, code))
    assert done.returncode == 0, done.stderr
    own = fingerprint()["BLAS kernels"]
    assert done.stderr.count("warning") == 1
    assert "warning: ranks may round differently" in done.stderr
    assert f"  BLAS kernels: rank 0, 2: {own}; rank 1: {kernels}\n" in done.stderr
    assert "strict = true in [job]" in done.stderr
    assert json.loads(done.stdout)["world_size"] == 3


def test_ranks_that_differ_refuse_a_strict_job_before_the_first_step(tmp_path):
    kernels = _other_kernels()
    code = f"if rank == 1: os.environ['OPENBLAS_CORETYPE'] = {kernels!r}"
    done = rlx("train", DIGITS, *SHORT, *STRICT, "-n", "2", **on_each_rank(tmp_path, code))
    assert done.returncode == 1
    assert "ranks may round differently, and the job is strict" in done.stderr
    assert f"BLAS kernels: rank 0: {fingerprint()['BLAS kernels']}; rank 1: {kernels}" in (
        done.stderr
    )
    assert "warning" not in done.stderr
    assert "epoch" not in done.stderr


def test_ranks_that_are_alike_run_a_strict_job_with_the_same_bits_and_no_warning():
    strict = rlx("train", DIGITS, *SHORT, *STRICT, "-n", "2", "--json")
    assert strict.returncode == 0, strict.stderr
    assert "warning" not in strict.stderr
    assert json.loads(strict.stdout)["params_sha256"] == result(DIGITS, *SHORT)["params_sha256"]


BY_JAX = ("--set", "job.backend=jax")


def test_by_jax_it_is_also_that_of_xla_and_of_its_threads():
    pytest.importorskip("jax")
    facts = _facts("--backend", "jax")
    assert list(facts)[-5:] == ["jax", "jaxlib", "XLA device", "XLA threads", "digest"]
    assert facts["XLA threads"] == "1"
    more = _facts("--backend", "jax", PJRT_NPROC="2")
    assert _changed(facts, more) == {"XLA threads"}
    assert result(DIGITS, *SHORT, *BY_JAX)["fingerprint"] == facts["digest"]


def test_ranks_whose_xla_differs_refuse_a_strict_job(tmp_path):
    pytest.importorskip("jax")
    code = "if rank == 1: os.environ['PJRT_NPROC'] = '2'"
    environment = on_each_rank(tmp_path, code)
    done = rlx("train", DIGITS, *SHORT, *STRICT, *BY_JAX, "-n", "2", **environment)
    assert done.returncode == 1
    assert "XLA threads: rank 0: 1; rank 1: 2" in done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--backend", "torch"), "there is no backend 'torch'; known: numpy, jax"),
        (("--device", "gpu"), "numpy has no device 'gpu'; known: cpu"),
    ],
)
def test_one_of_what_there_is_not_is_refused(options, text):
    done = rlx("fingerprint", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
