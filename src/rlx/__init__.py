"""rlx: train models on many processes, with the same bits at any world size and on any transport.

The names below load on first use, so that `import rlx` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlx.autodiff import grad, grad_with_loss
    from rlx.backends import Session
    from rlx.dist import DataRef, TrainSpec, WeightRef, run_train, serve_trainer_here
    from rlx.errors import (
        DataError,
        DeadlineExceeded,
        DisagreementError,
        PeerLost,
        RemoteError,
        RlxError,
        TransportError,
        UsageError,
        WireError,
    )
    from rlx.group import ProcessGroup
    from rlx.ir import DType, Graph

_ROOMS = {
    "rlx.autodiff": ("grad", "grad_with_loss"),
    "rlx.backends": ("Session",),
    "rlx.dist": ("DataRef", "TrainSpec", "WeightRef", "run_train", "serve_trainer_here"),
    "rlx.errors": (
        "DataError",
        "DeadlineExceeded",
        "DisagreementError",
        "PeerLost",
        "RemoteError",
        "RlxError",
        "TransportError",
        "UsageError",
        "WireError",
    ),
    "rlx.group": ("ProcessGroup",),
    "rlx.ir": ("DType", "Graph"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DType",
    "DataError",
    "DataRef",
    "DeadlineExceeded",
    "DisagreementError",
    "Graph",
    "PeerLost",
    "ProcessGroup",
    "RemoteError",
    "RlxError",
    "Session",
    "TrainSpec",
    "TransportError",
    "UsageError",
    "WeightRef",
    "WireError",
    "__version__",
    "grad",
    "grad_with_loss",
    "run_train",
    "serve_trainer_here",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlx' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
