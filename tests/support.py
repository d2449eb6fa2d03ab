"""What tests in several folders use: a clean environment, and process trees."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "job.toml"


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what a launcher or a user may have set in it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RLX_", "OMPI_", "PMI", "SLURM_", "PRTE_"))
        and not name.endswith("_NUM_THREADS")
    }
    return {**kept, **more}


def heed_signals() -> None:
    """What a shell in the background, or nohup, has ignored ends this process again; a
    `preexec_fn` for tests that send signals, however the tests themselves were started."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def parents() -> dict[int, int]:
    """{pid: its parent's pid} of every process (Linux)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def family(pid: int) -> set[int]:
    """A process and all that it started, directly or not."""
    tree = parents()
    members = {pid}
    while more := {child for child, parent in tree.items() if parent in members} - members:
        members |= more
    return members
