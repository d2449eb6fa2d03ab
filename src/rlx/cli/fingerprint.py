"""`rlx fingerprint`: what a rank that is started here computes with."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from rlx import job

_DESCRIPTION = """\
Print what the bits of a result depend on beside the job: libraries, CPU features and BLAS threads
of a rank that is started here, and with --backend jax also jax's versions, device and threads.
Ranks compare it at the start of a run and warn where it differs; with strict = true in [job] they
refuse. The digest is the one of a result's "fingerprint"."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `fingerprint` to the commands of the parser."""
    parser = commands.add_parser(
        "fingerprint",
        help="show what a rank here computes with",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print it as one JSON line")
    parser.add_argument("--backend", default="numpy", help="numpy (the default) or jax")
    parser.add_argument("--device", default="cpu", help="cpu (the default), or gpu for jax")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx fingerprint`."""
    job.pin_blas(os.environ)
    from rlx.backends import fingerprint, fingerprint_digest

    facts = fingerprint(options.backend, options.device)
    shown = {**facts, "digest": fingerprint_digest(facts)}
    width = max(map(len, shown))
    lines = [f"{name:<{width}}  {value}\n" for name, value in shown.items()]
    result = job.result_stream(os.environ)
    result.write(json.dumps(shown) + "\n" if options.json else "".join(lines))
    result.flush()
    return 0
