"""A rank's tie to the launcher that started it: when the launcher dies, the rank goes too."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import MutableMapping

LAUNCHER_VARIABLE = "RLX_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie_to_launcher(environ: MutableMapping[str, str]) -> None:
    """Have the kernel end this process with its launcher; nothing where there is no launcher.

    An interrupt from the terminal reaches the launcher too, which says so once: it ends this
    process without a word. What this process prints reaches the launcher line by line.

    The variable is taken out of `environ`, since a process that this one starts has another parent.
    """
    number = environ.pop(LAUNCHER_VARIABLE, "")
    if not number.isdecimal() or not sys.platform.startswith("linux"):
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # as the launcher started it
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(number):
        # The launcher died before the tie was made.
        sys.exit(128 + signal.SIGTERM)
