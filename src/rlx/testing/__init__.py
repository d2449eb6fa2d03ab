"""For users' tests and ours: ranks as threads and as processes, the laws of a transport, faults
that happen by a plan, and checks of gradients.

It may use every room but `cli`, and no room uses it. What injects faults loads on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx.testing.gradcheck import check_gradients
from rlx.testing.meshes import make_mesh, run_on_mesh, run_ranks

if TYPE_CHECKING:
    from rlx.testing.faults import SURVIVABLE, Fault, FaultKind, FaultPlan, FaultyTransport
    from rlx.testing.links import SURVIVABLE_LINK_FAULTS, LinkFault, LinkFaultKind
    from rlx.testing.outcomes import Failure, Outcome, named_by, summary, watch_ranks
    from rlx.testing.processes import RankProcesses
    from rlx.testing.proxy import FaultProxy, Route, proxied, proxied_mesh

_HOME = {
    "SURVIVABLE": "faults",
    "SURVIVABLE_LINK_FAULTS": "links",
    "Failure": "outcomes",
    "Fault": "faults",
    "FaultKind": "faults",
    "FaultPlan": "faults",
    "FaultProxy": "proxy",
    "FaultyTransport": "faults",
    "LinkFault": "links",
    "LinkFaultKind": "links",
    "Outcome": "outcomes",
    "RankProcesses": "processes",
    "Route": "proxy",
    "named_by": "outcomes",
    "proxied": "proxy",
    "proxied_mesh": "proxy",
    "summary": "outcomes",
    "watch_ranks": "outcomes",
}

__all__ = [
    "SURVIVABLE",
    "SURVIVABLE_LINK_FAULTS",
    "Failure",
    "Fault",
    "FaultKind",
    "FaultPlan",
    "FaultProxy",
    "FaultyTransport",
    "LinkFault",
    "LinkFaultKind",
    "Outcome",
    "RankProcesses",
    "Route",
    "check_gradients",
    "make_mesh",
    "named_by",
    "proxied",
    "proxied_mesh",
    "run_on_mesh",
    "run_ranks",
    "summary",
    "watch_ranks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlx.testing' has no attribute {name!r}")
    return getattr(import_module(f"rlx.testing.{_HOME[name]}"), name)
