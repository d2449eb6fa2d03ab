"""A job file, the environment and flags, to one run.

This room decides what runs where: which rank this process is, which transport it uses, what it
starts. It alone, with `net`'s launch module, reads the environment, which its callers hand in.
Modules load on first use: the environment for BLAS must be set before numpy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.job.blas import pin_blas
    from rlx.job.config import JobConfig, default_settings, load_config
    from rlx.job.connect import run_here
    from rlx.job.inspection import Inspection, inspect_job
    from rlx.job.launcher import launch_ranks
    from rlx.job.place import Role, role_of
    from rlx.job.reports import send_report
    from rlx.job.run import Request, is_coordinator, run_job
    from rlx.job.script import launch
    from rlx.job.settings import REQUIRED, SECTIONS, Setting
    from rlx.job.tether import LAUNCHER_VARIABLE, tie_to_launcher
    from rlx.job.voice import progress_stream, result_stream

_HOME = {
    "LAUNCHER_VARIABLE": "tether",
    "Inspection": "inspection",
    "JobConfig": "config",
    "Request": "run",
    "Role": "place",
    "SECTIONS": "settings",
    "REQUIRED": "settings",
    "Setting": "settings",
    "inspect_job": "inspection",
    "is_coordinator": "run",
    "launch": "script",
    "launch_ranks": "launcher",
    "load_config": "config",
    "pin_blas": "blas",
    "progress_stream": "voice",
    "result_stream": "voice",
    "role_of": "place",
    "run_job": "run",
    "send_report": "reports",
    "tie_to_launcher": "tether",
    "run_here": "connect",
    "default_settings": "config",
}

__all__ = [
    "LAUNCHER_VARIABLE",
    "REQUIRED",
    "SECTIONS",
    "Inspection",
    "JobConfig",
    "Request",
    "Role",
    "Setting",
    "default_settings",
    "inspect_job",
    "is_coordinator",
    "launch",
    "launch_ranks",
    "load_config",
    "pin_blas",
    "progress_stream",
    "result_stream",
    "role_of",
    "run_here",
    "run_job",
    "send_report",
    "tie_to_launcher",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlx.job' has no attribute {name!r}")
    return getattr(import_module(f"rlx.job.{_HOME[name]}"), name)
