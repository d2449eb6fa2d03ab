"""The `rlx` command.

Exit statuses: 0 for success, 2 for what the user can put right by typing something else, 1 for any
other error, 128 + N where signal N ended the run.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import rlx
from rlx import job
from rlx.cli import bench, fingerprint, inspect, train
from rlx.errors import RlxError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_missing_streams()
    job.tie_to_launcher(os.environ)
    options = _options(given)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return int(options.run(options, given))
    except KeyboardInterrupt:
        sys.stderr.write("rlx: interrupted\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has left. Keep the interpreter from failing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # a rank's outermost edge
        if not job.send_report(error, os.environ):
            _complain(error, options.debug)
        return 2 if isinstance(error, UsageError) else 1


def _open_missing_streams() -> None:
    """Give this process the standard files that its parent closed, or the next file that is opened
    would have such a number, and receive what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for good


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like all others of rlx. Flags have one spelling."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rlx: error: {message}; see {self.prog} --help\n")


def _options(given: Sequence[str]) -> argparse.Namespace:
    options, unknown = _parser().parse_known_args(given)
    if unknown:
        close = difflib.get_close_matches(unknown[0].partition("=")[0], options.flags, 1)
        hint = f", did you mean {close[0]}?" if close else ""
        sys.stderr.write(
            f"rlx: error: {options.command} takes no {unknown[0]!r}{hint}; "
            f"see rlx {options.command} --help\n"
        )
        sys.exit(2)
    return options


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="rlx",
        description="Train models on many processes: the same bits at any world size, on any "
        "transport.",
        epilog="A first run: rlx train examples/digits/job.toml -n 2. What a job file holds: "
        "rlx train --help. Exit statuses: 0 done; 2 something to put right in what was typed, the "
        "job or the model; 1 any other error; 128 + N ended by signal N.",
    )
    parser.add_argument("--version", action="version", version=f"rlx {rlx.__version__}")
    parser.set_defaults(debug=False)
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    train.add_command(commands)
    inspect.add_command(commands)
    fingerprint.add_command(commands)
    bench.add_command(commands)
    for command in commands.choices.values():
        command.set_defaults(flags=re.findall("--[a-z]+", command.format_usage()))
    return parser


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    """A warning as one message, like an error; where it was raised says nothing to a user."""
    sys.stderr.write(f"rlx: warning: {message}\n")


def _complain(error: Exception, debug: bool) -> None:
    """One message for an error of ours; a traceback for any other, which is a fault of rlx."""
    if debug or not isinstance(error, RlxError):
        traceback.print_exception(error)
    if isinstance(error, RlxError):
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        sys.stderr.write(f"rlx: error: {error}{where}\n")
