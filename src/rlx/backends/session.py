"""Where graphs are compiled for a device."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.backends.compiled import Compiled
from rlx.backends.dtypes import Array
from rlx.backends.executable import Executable
from rlx.errors import UsageError
from rlx.ir import Graph

DEVICES = ("cpu",)


class Session:
    """A device on which graphs run; "cpu" is numpy in this process. Holds no state of its own."""

    def __init__(self, device: str = "cpu") -> None:
        if device not in DEVICES:
            raise UsageError(f"there is no device {device!r}; known: {', '.join(DEVICES)}")
        self.device = device

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
            Memory of the caller for some or all parameters, by name: used in place, never copied,
            so that an optimiser changes them between runs. It must have the parameter's dtype and
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
        return Executable(graph, params=params or {}, outputs=outputs or {})
