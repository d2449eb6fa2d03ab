"""What the bits of a step depend on beside its graph and its rows: who does the arithmetic."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy

from rlx.backends import jax
from rlx.backends.session import check_device

UNKNOWN = "unknown"


def fingerprint(backend: str = "numpy", device: str = "cpu") -> dict[str, str]:
    """What this process computes with, by name: what may round differently where it is different.

    numpy picks its loops by the features of the CPU, OpenBLAS its kernels by the CPU's model, and
    both call the C library for some functions; BLAS may add in another order with other threads.
    What cannot be found out is "unknown".

    Raises `UsageError` for a backend or device that there is not here.
    """
    check_device(device, backend)
    return {
        "backend": backend,
        "architecture": platform.machine() or UNKNOWN,
        "CPU features": _cpu_features(),
        "C library": _c_library(),
        "numpy": numpy.__version__,
        **_blas(),
        **(jax.facts(device) if backend == "jax" else {}),
    }


def fingerprint_digest(facts: Mapping[str, str]) -> str:
    """16 hexadecimal digits, the same where all facts are."""
    lines = "".join(f"{name}: {value}\n" for name, value in facts.items())
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _cpu_features() -> str:
    """Those for which numpy has loops; `NPY_DISABLE_CPU_FEATURES` takes some away."""
    config: Any = numpy.show_config(mode="dicts")
    extensions = config.get("SIMD Extensions", {})
    return " ".join((*extensions.get("baseline", ()), *extensions.get("found", ()))) or UNKNOWN


def _c_library() -> str:
    """Such as "glibc 2.36"."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or UNKNOWN
    except (AttributeError, ValueError, OSError):
        return " ".join(platform.libc_ver()).strip() or UNKNOWN


def _blas() -> dict[str, str]:
    """The BLAS that numpy calls. Other libraries may have brought their own, which do not count."""
    import threadpoolctl  # several milliseconds, for those alone who ask

    found = [one for one in threadpoolctl.threadpool_info() if one.get("user_api") == "blas"]
    libraries = Path(numpy.__file__).parents[1] / "numpy.libs"
    own = [one for one in found if Path(one["filepath"]).is_relative_to(libraries)] or found
    if not own:
        return {"BLAS": _built_with(), "BLAS kernels": UNKNOWN, "BLAS threads": UNKNOWN}
    return {
        "BLAS": _each(f"{one['internal_api']} {one['version']}" for one in own),
        "BLAS kernels": _each(str(one.get("architecture", UNKNOWN)) for one in own),
        "BLAS threads": _each(str(one["num_threads"]) for one in own),
    }


def _each(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))


def _built_with() -> str:
    config: Any = numpy.show_config(mode="dicts")
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', UNKNOWN)} {blas.get('version', '')}".strip()
