"""Graph in, callable out: the numpy executor, and the oracle that it is checked against.

A graph is compiled to a plan (which call writes which buffer), and a plan with memory is a flat
list of numpy calls. This room computes in this process alone: it knows no gradients (a gradient is
a graph like any other), no files, no wire and no ranks.
"""

from rlx.backends.compiled import BoundGraph, Compiled
from rlx.backends.dtypes import numpy_dtype
from rlx.backends.kernels import KERNELS
from rlx.backends.machine import fingerprint, fingerprint_digest
from rlx.backends.oracle import ORACLE, evaluate
from rlx.backends.session import Session, check_device

__all__ = [
    "KERNELS",
    "ORACLE",
    "BoundGraph",
    "Compiled",
    "Session",
    "check_device",
    "evaluate",
    "fingerprint",
    "fingerprint_digest",
    "numpy_dtype",
]
