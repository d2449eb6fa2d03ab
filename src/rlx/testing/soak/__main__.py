"""`scripts/soak`: the soak's command line, and its workers.

A worker is a process that runs every W-th trial and prints each as a line of JSON. Most trials wait
more than they compute, so that several workers share a core well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from rlx import job
from rlx.testing.soak.kinds import KINDS, Kind
from rlx.testing.soak.report import as_json, as_table
from rlx.testing.soak.trials import Trial, run_trials

_PROGRESS_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak; 1 where a trial went wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    kinds = [one for one in KINDS if options.kinds in one.name]
    if not kinds:
        sys.stderr.write(f"no kind of fault has {options.kinds!r} in its name\n")
        return 2
    if options.worker is not None:
        job.tie_to_launcher(os.environ)
        _work(options, kinds)
        return 0
    begun_s = time.monotonic()
    trials = sorted(_trials(options, given), key=lambda one: one.number)
    wall_s = time.monotonic() - begun_s
    order = [one.name for one in KINDS]
    sys.stdout.write(as_json(trials, wall_s) if options.json else as_table(trials, order, wall_s))
    complete = len(trials) == len(_numbers(options))
    if not complete:
        sys.stderr.write("a worker ended early\n")
    return 0 if complete and all(one.is_good for one in trials) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak", description="Inject faults into many small worlds, and judge what comes of it."
    )
    parser.add_argument("--faults", type=int, default=1000, metavar="N", help="how many faults")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which faults")
    parser.add_argument("--kinds", default="", metavar="TEXT", help="only kinds with TEXT in them")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run one trial again")
    parser.add_argument("--workers", type=int, default=4, metavar="W", help="processes to use")
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser


def _numbers(options: argparse.Namespace) -> range:
    if options.only is not None:
        return range(options.only, options.only + 1)
    return range(options.faults)


def _work(options: argparse.Namespace, kinds: Sequence[Kind]) -> None:
    numbers = _numbers(options)[options.worker :: options.workers]
    for trial in run_trials(options.seed, numbers, kinds):
        sys.stdout.write(json.dumps(asdict(trial)) + "\n")
        sys.stdout.flush()


def _trials(options: argparse.Namespace, given: Sequence[str]) -> Iterator[Trial]:
    """All trials, as the workers bring them."""
    environment = {**os.environ, "RLX_LAUNCHER_PID": str(os.getpid())}
    job.pin_blas(environment)
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "rlx.testing.soak", *given, "--worker", str(place)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(min(options.workers, len(_numbers(options))))
    ]
    found: list[Trial] = []
    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            for reading in [pool.submit(_read, worker, found) for worker in workers]:
                reading.result()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    yield from found


def _read(worker: subprocess.Popen[str], found: list[Trial]) -> None:
    """Take what a worker brings, and say now and then how far it all is."""
    assert worker.stdout is not None
    for line in worker.stdout:
        found.append(Trial(**json.loads(line)))
        if len(found) % 500 == 0:
            bad = sum(not one.is_good for one in found)
            sys.stderr.write(f"{len(found)} faults, {bad} of them with a problem\n")


if __name__ == "__main__":
    sys.exit(main())
