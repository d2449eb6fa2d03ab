"""`rlx bench`: what was it that takes so long?"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from rlx import job
from rlx.errors import ConfigError

_DESCRIPTION = """\
Measure, and print medians. Machines are noisy: what is compared is measured in turns, in one
run."""

_COLLECTIVES = """\
Time an all-reduce (a float32 sum in place), or other collectives, between N ranks of this host, or
between the ranks that mpirun or srun started. Contenders, which `--transport` chooses:

  tcp             rlx between processes, over TCP sockets alone
  tcp+shm         rlx between processes of one host, arrays in shared memory
  threads         rlx between threads
  mpi             rlx over MPI (started by mpirun, which this command runs)

`--against` names what they are compared with: gloo (torch.distributed), mpi (MPI's own calls in the
same launch, over shared memory), mpi-tcp (the same, Open MPI kept to TCP), or another contender.
What is not installed is said, and the rest is measured."""

_GOALS = """\
Time an all-reduce of every transport beside what it is held against: Open MPI over TCP and over
shared memory, MPI_Allreduce of the same launch, and gloo. Each cell is a ratio of medians, and the
two medians in microseconds."""

_LINKS = """\
Time messages between each pair of ranks: half of a round trip of 4 bytes, and how fast long ones
go one way. The slowest pair is named. `--transport` and `--against` as for collectives."""

_STEP = """\
Time a step (forward, backward, SGD with momentum 0.9) of four small models on one rank and one BLAS
thread, beside the same models in PyTorch, eager, on one thread, where that is installed: A, a
linear regression; B, an MLP; C, a CNN; D, a GPT-like model. The first losses of both must agree."""

_FIRST = """\
Time fresh processes that train the models of `step`, from the start of the process to the end of
the first step, and say how much memory they held at most; by rlx, and by PyTorch where it is
installed, in turns."""

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20, "G": 1 << 30}
_MOST_BYTES = 1 << 31
_MOST_COUNT = 1 << 20


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the commands of the parser."""
    bench = commands.add_parser(
        "bench",
        help="measure how long starting, collectives and links take",
        description=_DESCRIPTION,
    )
    whats = bench.add_subparsers(title="what to measure", required=True, metavar="WHAT")
    startup = _add(whats, "startup", "fresh interpreters that import", None, _startup)
    startup.description = "Time fresh interpreters that import rlx, and numpy, in turns."
    step = _add(whats, "step", "training steps, beside PyTorch", _STEP, _step)
    step.add_argument("--models", default="A,B,C,D", metavar="LETTER,...", help="(%(default)s)")
    step.add_argument(
        "--batch",
        type=_counts,
        default=[],
        metavar="N,...",
        help="rows a step, in place of each model's",
    )
    step.add_argument(
        "--layers", type=_counts, default=[], metavar="N,...", help="of model D, in place of 2"
    )
    _add_seconds(step, 5.0, "about how long to measure each model; three turns at least")
    first = _add(whats, "first", "fresh processes that train, beside PyTorch", _FIRST, _first)
    first.add_argument("--models", default="A,B,C,D", metavar="LETTER,...", help="(%(default)s)")
    first.add_argument(
        "--repeats", type=_count, default=5, metavar="N", help="processes of each (%(default)s)"
    )
    for name, help_text, description, run, seconds in (
        ("collectives", "collectives between ranks", _COLLECTIVES, _collectives, 20.0),
        ("links", "messages between each pair of ranks", _LINKS, _links, 10.0),
        ("goals", "all transports beside other libraries", _GOALS, _goals, 120.0),
    ):
        parser = _add(whats, name, help_text, description, run)
        parser.add_argument("-n", "--ranks", type=int, metavar="N", help="how many ranks to start")
        parser.add_argument(
            "--sizes", type=_sizes, metavar="SIZE,...", help="such as 4,4K,256K,4M,64M"
        )
        _add_seconds(parser, seconds, "about how long to measure; three rounds at least")
        if name != "goals":
            parser.add_argument("--transport", default="auto", metavar="NAME,...")
            parser.add_argument("--against", default="", metavar="NAME,...")
        if name == "collectives":
            parser.add_argument(
                "--calls",
                default="all_reduce",
                metavar="CALL,...",
                help="of all_reduce, broadcast, all_gather, reduce_scatter, barrier; or all",
            )


def _add_seconds(parser: argparse.ArgumentParser, default: float, help_text: str) -> None:
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=default,
        metavar="S",
        help=f"{help_text} (%(default)s)",
    )


def _add(
    whats: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help_text: str,
    description: str | None,
    measure: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    parser = whats.add_parser(
        name,
        help=help_text,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run, measure=measure)
    return parser


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx bench`."""
    job.pin_blas(os.environ)
    options.measure(options)
    return 0


def _startup(options: argparse.Namespace) -> None:
    from rlx import bench

    rows = bench.measure_startup()
    _print(bench.as_json(rows) if options.json else bench.as_table(rows))


def _step(options: argparse.Namespace) -> None:
    from rlx import bench

    letters = _models(options)
    if options.layers and "D" not in letters:
        raise ConfigError(f"--layers is for model D; --models has {options.models}")
    cases = bench.cases(letters, options.batch, options.layers)
    steps = bench.measure_steps(cases, seconds=options.seconds)
    table = bench.as_table(steps.rows) + "".join(f"{note}\n" for note in steps.notes)
    _print(bench.as_json(steps.rows) if options.json else table)


def _first(options: argparse.Namespace) -> None:
    from rlx import bench

    rows = bench.measure_first(_models(options), options.repeats)
    _print(bench.first_json(rows) if options.json else bench.first_table(rows))


def _models(options: argparse.Namespace) -> list[str]:
    from rlx import bench

    letters = _listed(options.models)
    for letter in letters:
        if letter not in bench.MODELS:
            raise ConfigError(f"--models: there is no {letter!r}; known: {', '.join(bench.MODELS)}")
    if not letters:
        raise ConfigError("--models names none")
    return letters


def _collectives(options: argparse.Namespace) -> None:
    from rlx import bench

    known = list(bench.CALLS)
    calls = known if options.calls == "all" else _listed(options.calls)
    for call in calls:
        if call not in known:
            raise ConfigError(f"--calls: there is no {call!r}; known: {', '.join(known)}, all")

    def measure(stage: Any, names: list[str], against: list[str]) -> Any:
        return bench.measure_collectives(
            stage,
            names,
            against=against,
            calls=calls,
            sizes=options.sizes or bench.SIZES_BYTES,
            seconds=options.seconds,
        )

    _measure(options, measure, bench.collectives_json, bench.collectives_table)


def _links(options: argparse.Namespace) -> None:
    from rlx import bench

    def measure(stage: Any, names: list[str], against: list[str]) -> Any:
        together = list(dict.fromkeys([*names, *against]))
        sizes = options.sizes or bench.LINK_SIZES_BYTES
        return bench.measure_links(stage, together, sizes=sizes, seconds=options.seconds)

    _measure(options, measure, bench.links_json, bench.links_table)


def _goals(options: argparse.Namespace) -> None:
    from rlx import bench

    if job.role_of(os.environ, "auto", None).place is not None:
        raise ConfigError("rlx bench goals starts its own ranks; leave the launcher out")
    options.transport, options.against = ",".join(bench.GOALS_CONTENDERS), ""

    def measure(stage: Any, names: list[str], against: list[str]) -> Any:
        sizes = options.sizes or bench.SIZES_BYTES
        return bench.measure_goals(stage, sizes=sizes, seconds=options.seconds)

    _measure(options, measure, bench.goals_json, bench.goals_table)


Measure = Callable[[Any, list[str], list[str]], Any]


def _measure(
    options: argparse.Namespace,
    measure: Measure,
    as_json: Callable[[Any], str],
    as_table: Callable[[Any], str],
) -> None:
    """Measure where the ranks are: those that a launcher started, or some that are started here."""
    if job.role_of(os.environ, "auto", None).place is None:
        found = _in_started_worlds(options, measure)
    else:
        found = _among_own_ranks(options, measure)
    if found is not None:
        _print(as_json(found) if options.json else as_table(found))


def _in_started_worlds(options: argparse.Namespace, measure: Measure) -> Any:
    from rlx import bench

    wanted = "tcp,tcp+shm" if options.transport == "auto" else options.transport
    names = [bench.contender_named(name) for name in _listed(wanted)]
    against = [bench.baseline_named(name) for name in _listed(options.against)]
    ranks = 2 if options.ranks is None else options.ranks
    if ranks < 1:
        raise ConfigError(f"-n is at least 1; got {ranks}")
    with bench.StartedWorlds([*names, *against], ranks, os.environ) as stage:
        found = measure(stage, names, against)
    if not found.about.keys() - found.lost.keys():
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.lost.items())
        raise ConfigError(f"nothing could be measured: {reasons}")
    return found


def _among_own_ranks(options: argparse.Namespace, measure: Measure) -> Any:
    """Every rank measures; rank 0 has something to print."""
    role = job.role_of(os.environ, options.transport, options.ranks)
    from rlx import bench

    against = [bench.baseline_named(name) for name in _listed(options.against)]
    if against and (role.transport, against) != ("mpi", ["mpi-native"]):
        raise ConfigError(
            "under a launcher, --against is mpi, of the same launch; for the others leave the "
            "launcher out and say -n N"
        )

    def body(group: Any) -> Any:
        subjects: dict[str, Any] = {role.transport: bench.RlxSubject(group)}
        if against:
            subjects["mpi-native"] = bench.NativeMpiSubject()
        about = bench.version_of_mpi() if role.transport == "mpi" else ""
        return measure(bench.OwnRanks(group, subjects, about), [role.transport], against)

    found = job.run_here(role, job.default_settings("net"), os.environ, body)
    return found if job.is_coordinator(role) else None


def _print(text: str) -> None:
    result = job.result_stream(os.environ)
    result.write(text)
    result.flush()


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _sizes(text: str) -> list[int]:
    """Bytes, of a list such as "4,256K,4MiB"."""
    sizes = []
    for word in _listed(text):
        digits = word.rstrip("BKMGibkmg ")
        unit = word[len(digits) :].strip().upper()
        if not digits.isdecimal() or unit not in _UNITS:
            raise argparse.ArgumentTypeError(f"{word!r} is no size; say 4096, 4K or 64M")
        sizes.append(int(digits) * _UNITS[unit])
        if not 0 < sizes[-1] <= _MOST_BYTES:
            raise argparse.ArgumentTypeError(f"{word!r}: a size is 1 to {_MOST_BYTES} bytes")
    return sizes


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _MOST_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {_MOST_COUNT}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(word) for word in text.split(",")]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
