"""`rlx bench`: measured comparisons."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rlx.job import pin_blas


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of the parser."""
    parser = commands.add_parser(
        "bench", help="measure", description="Measure in turns, and print medians and ratios."
    )
    parser.add_argument("what", choices=("startup", "collectives"), help="what to measure")
    parser.add_argument("-n", "--ranks", type=int, default=2, metavar="N", help="for collectives")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx bench`."""
    pin_blas(os.environ)
    from rlx import bench  # numpy comes with it, so the pinning is first

    if options.what == "startup":
        rows = bench.measure_startup()
    else:
        rows = bench.measure_collectives(options.ranks)
    sys.stdout.write(bench.as_json(rows) if options.json else bench.as_table(rows))
    return 0
