"""The job's own words, apart from what its ranks print: the progress, and the result at the end.

Rank 0 says them. Where a launcher started it, its standard output and error are pipes whose lines
the launcher marks with the rank; the job's words go through files of their own, and stay unmarked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TextIO

RESULT_VARIABLE = "RLX_RESULT_FD"
PROGRESS_VARIABLE = "RLX_PROGRESS_FD"


def result_stream(environ: MutableMapping[str, str]) -> TextIO:
    """Where the result goes: the launcher's standard output, or this process's own.

    May be asked for once: the variable is taken out of `environ`, since a process that this one
    starts does not have the file.
    """
    return _stream(environ, RESULT_VARIABLE, sys.stdout)


def progress_stream(environ: MutableMapping[str, str]) -> TextIO:
    """Where the progress goes: the launcher's standard error, or this process's own.

    May be asked for once, as the result's.
    """
    return _stream(environ, PROGRESS_VARIABLE, sys.stderr)


def _stream(environ: MutableMapping[str, str], variable: str, own: TextIO) -> TextIO:
    number = environ.pop(variable, "")
    if not number.isdecimal():
        return own
    os.set_inheritable(int(number), False)
    return open(int(number), "w", buffering=1, encoding="utf-8")
