"""`rlx bench`: measured comparisons."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rlx import job
from rlx.errors import ConfigError

_DESCRIPTION = """\
Measure, and print medians. `startup` runs fresh interpreters in turns; `collectives` times an
all-reduce between ranks, which are started as those of `rlx train` are."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure how long starting and collectives take",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("startup", "collectives"), help="what to measure")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="how many ranks to start here")
    parser.add_argument(
        "--transport",
        choices=("auto", "tcp", "mpi", "threads"),
        default="auto",
        help="how ranks talk; auto is mpi under an MPI launcher, else tcp",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx bench`."""
    job.pin_blas(os.environ)
    return _startup(options) if options.what == "startup" else _collectives(options, arguments)


def _startup(options: argparse.Namespace) -> int:
    if options.ranks is not None:
        raise ConfigError("-n is for collectives; startup measures single processes")
    from rlx.bench import as_json, as_table, measure_startup

    rows = measure_startup()
    sys.stdout.write(as_json(rows) if options.json else as_table(rows))
    return 0


def _collectives(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    settings = job.default_settings("net")
    role = job.role_of(os.environ, options.transport, options.ranks)
    if role.transport == "tcp" and role.place is None and role.ranks > 1:
        return job.launch_ranks(
            arguments, role.ranks, settings["coordinator"], os.environ, debug=options.debug
        )
    from rlx.bench import as_json, as_table, measure_collectives

    rows = job.run_here(
        role, settings, os.environ, lambda group: measure_collectives(group, role.carrier)
    )
    if job.is_coordinator(role):
        result = job.result_stream(os.environ)
        result.write(as_json(rows) if options.json else as_table(rows))
        result.flush()
    return 0
