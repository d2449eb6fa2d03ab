"""The same graphs by XLA, on the CPU or a GPU.

A rule a node states the graph in jax's terms, and XLA compiles the whole for one binding of the
names. Results agree with numpy's within a tolerance, and not to the bit. jax loads when a session
asks for it, and nothing here changes its settings for the rest of the process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlx.errors import UsageError

if TYPE_CHECKING:
    from rlx.backends.jax.program import Programs

PLATFORMS = ("cpu", "gpu")
"""What jax may compute on, by jax's own names; a "gpu" is one of CUDA or of ROCm."""


def open_device(platform: str) -> Programs:
    """What compiles for the first device of `platform`, with nothing compiled yet.

    Raises `UsageError` where jax is missing, too old, or has no such device.
    """
    _refuse_without_jax()
    from rlx.backends.jax.program import Programs, first_device

    return Programs(first_device(platform))


def facts(platform: str) -> dict[str, str]:
    """What the bits of XLA's results depend on: its version, the device, and how many threads.

    Raises what `open_device` does.
    """
    _refuse_without_jax()
    from importlib.metadata import version

    from rlx.backends.jax.program import first_device

    return {
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "XLA device": first_device(platform).device_kind,
        "XLA threads": os.environ.get("PJRT_NPROC", "one a core"),
    }


def _refuse_without_jax() -> None:
    try:
        import jax
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"the backend 'jax' needs the package jax ({' '.join(str(error).split())}); "
            f"pip install 'rlx[jax]', or choose the backend 'numpy'"
        ) from None
    if not hasattr(jax, "enable_x64"):
        found = getattr(jax, "__version__", f"what is at {list(getattr(jax, '__path__', []))}")
        raise UsageError(
            f"the backend 'jax' needs jax 0.8 or later; found {found}; pip install 'rlx[jax]'"
        )
