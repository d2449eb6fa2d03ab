"""Launching a job from a script or a notebook: the `rlx` command, and its result as a dict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx.errors import LaunchError
from rlx.job.tether import LAUNCHER_VARIABLE

_KEPT_LINES = 15  # of what the command printed, for the error
_END_S = 10.0


def launch(
    job: str | Path, ranks: int, *, settings: Sequence[str] = (), save: str | Path | None = None
) -> dict[str, Any]:
    """Train the job of a file on `ranks` processes here; the result, as `--json` prints it.

    It is `rlx train JOB -n RANKS` with a `--set` for each of `settings`, such as "job.epochs=2".
    Fresh interpreters run it, which import nothing of the caller's: a script needs no main guard.
    What it prints comes out on this process's standard error, and it ends when this process does.

    Raises `LaunchError`, with the exit status and the last lines, where it fails.
    """
    arguments = ["train", str(job), "-n", str(ranks), "--json"]
    arguments += [word for setting in settings for word in ("--set", setting)]
    arguments += [] if save is None else ["--save", str(save)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlx", *arguments],
        env={**os.environ, LAUNCHER_VARIABLE: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    try:
        last = _passed_on(process)
        status = process.wait()
    finally:
        _end(process)
    if status:
        raise LaunchError(status, f"the job {job} ended with status {status}:\n{''.join(last)}")
    result: dict[str, Any] = json.loads(last[-1])
    return result


def _passed_on(process: subprocess.Popen[str]) -> deque[str]:
    """Show what a command prints, but the result, which is its last line; the last lines."""
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stdout is not None
    for line in process.stdout:
        if last:
            sys.stderr.write(last[-1])
        last.append(line)
    return last


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing behind, however the wait ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdout is not None
    process.stdout.close()
