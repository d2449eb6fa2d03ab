"""One BLAS and one XLA thread a process, unless the user says otherwise. Must run before numpy is
imported."""

from __future__ import annotations

from collections.abc import MutableMapping

BLAS_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
XLA_VARIABLE = "PJRT_NPROC"
"""The threads of XLA's pool, which it reads when jax first computes."""


def pin_blas(environ: MutableMapping[str, str]) -> None:
    """Set the thread variables to 1 where none of them is set.

    Ranks and lanes are rlx's parallelism; BLAS threads under each of them would fight for the
    cores. A variable that the user has set is a choice, and then none is touched. XLA too cuts a
    long sum by the number of its threads, so that its bits would depend on a rank's cores.
    """
    environ.setdefault(XLA_VARIABLE, "1")
    if not any(variable in environ for variable in BLAS_VARIABLES):
        environ.update(dict.fromkeys(BLAS_VARIABLES, "1"))
