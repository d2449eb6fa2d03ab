"""Where graphs are compiled for a device."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.compiled import Compiled
from rlx.backends.dtypes import Array
from rlx.backends.executable import Executable
from rlx.backends.jax import PLATFORMS, open_device
from rlx.errors import UsageError
from rlx.ir import Graph

_DEVICES = {"numpy": ("cpu",), "jax": PLATFORMS}
"""The backends, and what each may compute on."""


def check_device(device: str, backend: str) -> None:
    """Raise `UsageError` unless the backend is known, and computes on such a device."""
    if backend not in _DEVICES:
        raise UsageError(f"there is no backend {backend!r}; known: {', '.join(_DEVICES)}")
    if device not in _DEVICES[backend]:
        known = ", ".join(_DEVICES[backend])
        raise UsageError(f"{backend} has no device {device!r}; known: {known}")


class Session:
    """A device on which graphs run, and what computes there.

    The backend "numpy" computes in this process; "jax" has XLA compile each graph, for the CPU or
    for the first "gpu" that jax sees, and agrees with numpy within a tolerance, not to the bit.
    Threads may share a session.

    Raises `UsageError` for a device or backend that there is not, also where jax is not installed.
    """

    def __init__(self, device: str = "cpu", backend: str = "numpy") -> None:
        check_device(device, backend)
        self.device = device
        self.backend = backend
        self._programs = open_device(device) if backend == "jax" else None

    def compile(
        self,
        graph: Graph,
        *,
        params: Mapping[str, Array] | None = None,
        outputs: Mapping[int, Array] | None = None,
    ) -> Compiled:
        """Make `graph` runnable; later changes of the graph have no effect on the result.

        Parameters
        ----------
        params
            Memory of the caller for some or all parameters, by name: read at each run, so that an
            optimiser changes them in place between runs. It must have the parameter's dtype and
            shape and be C-contiguous. The others get memory of their own, and need `set_param`.
        outputs
            Memory of the caller for some outputs, by place in `graph.outputs`: each run writes the
            result there and returns that very array. Their shapes hold no names.

        Raises
        ------
        UsageError
            The graph has no outputs; a name or place is unknown; memory does not fit what it is
            for, or is shared between an output and anything else.
        """
        given, owned = params or {}, outputs or {}
        if self._programs is None:
            return Executable(graph, params=given, outputs=owned)
        from rlx.backends.jax.executable import JaxExecutable

        return JaxExecutable(graph, self._programs, params=given, outputs=owned)
