"""A seeded fuzzer of every decoder: `python -m rlx.testing.fuzz`, or `scripts/fuzz`.

The same seed, inputs and corpus give the same mutations. Whatever a decoder does to an input other
than to take it or to refuse it by one of its errors ends the run with status 1, and the input is
kept: another exception, an invariant that does not hold, `HANG_S` seconds, or memory over
`MEMORY_BYTES` more than the process had.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from rlx.errors import RlxError, UsageError
from rlx.testing.fuzz.corpus import Distillate, Kept, read_corpus, write_corpus
from rlx.testing.fuzz.net_targets import NET_TARGETS
from rlx.testing.fuzz.target import Target
from rlx.testing.fuzz.wire_targets import WIRE_TARGETS

TARGETS: Final = {target.name: target for target in (*NET_TARGETS, *WIRE_TARGETS)}
HANG_S: Final = 20.0
MEMORY_BYTES: Final = 128 << 20
_PLACE_FRAMES: Final = 3
_FIRST_COLUMNS: Final = ("accepted", "unfinished")


class Hang(BaseException):
    """An input took too long. No `Exception`, so that no decoder can take it for a bad input."""


@dataclass
class Tally:
    """What became of the inputs of one target."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        """How many inputs there were."""
        return self.outcomes.total()


class Finding(Exception):
    """An input that a decoder neither takes nor refuses."""

    def __init__(self, target: str, data: bytes, error: BaseException) -> None:
        super().__init__(f"{target}: {type(error).__name__}: {error}")
        self.target = target
        self.data = data
        self.error = error


@dataclass(frozen=True)
class Outcome:
    """What became of an input: a word, or an error's name and the error."""

    word: str
    error: RlxError | None = None

    @property
    def place(self) -> tuple[tuple[str, int], ...]:
        """Where it was refused: the innermost files and lines."""
        frames = traceback.walk_tb(self.error.__traceback__ if self.error else None)
        return tuple((frame.f_code.co_filename, line) for frame, line in frames)[-_PLACE_FRAMES:]


def outcome_of(target: Target, data: bytes) -> Outcome:
    """Give an input to a decoder.

    Raises `Finding`.
    """
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        return Outcome(target.run(data))
    except target.refusals as error:
        return Outcome(type(error).__name__, error)
    except (Exception, Hang) as error:
        raise Finding(target.name, data, error) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def fuzz_target(
    target: Target,
    inputs: int,
    seed: int,
    corpus: Sequence[Kept] = (),
    distillate: Distillate | None = None,
) -> Tally:
    """Run the corpus, which must do as it did when it was kept, then mutations of it and the seeds.

    `distillate`, where there is one, is told what the mutations do. Raises `Finding`.
    """
    tally = Tally(target.name)
    started = time.monotonic()
    for kept in corpus:
        word = outcome_of(target, kept.data).word
        if word != kept.outcome:
            error = AssertionError(f"an input of the corpus was {kept.outcome}; it is {word}")
            raise Finding(target.name, kept.data, error)
        tally.outcomes[word] += 1
    sources = [*target.seeds(), *(kept.data for kept in corpus)]
    generator = random.Random(f"{seed} {target.name}")
    while tally.inputs < inputs:
        data = target.mutate(generator, generator.choice(sources), sources)
        outcome = outcome_of(target, data)
        tally.outcomes[outcome.word] += 1
        if distillate is not None:
            distillate.add(outcome.word, outcome.place, data)
    tally.seconds = time.monotonic() - started
    return tally


def as_table(tallies: Sequence[Tally]) -> str:
    """One line a target: its inputs, what became of them, and inputs a second."""
    found = {outcome for tally in tallies for outcome in tally.outcomes}
    columns = [*_FIRST_COLUMNS, *sorted(found - set(_FIRST_COLUMNS))]
    rows = [["decoder", "inputs", *columns, "inputs/s"]]
    for tally in tallies:
        counts = [str(tally.outcomes[column] or "-") for column in columns]
        rate = f"{tally.inputs / max(tally.seconds, 1e-9):.0f}"
        rows.append([tally.target, str(tally.inputs), *counts, rate])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [one.rjust(width) for one, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def bound_memory(more_bytes: int) -> None:
    """From here on this process may have no more than `more_bytes` beside what it has (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise Hang(f"no end within {HANG_S:g} s")


def _report(finding: Finding, keep: Path) -> None:
    folder = keep / finding.target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{type(finding.error).__name__}.bin"
    path.write_bytes(finding.data)
    sys.stderr.write("".join(traceback.format_exception(finding.error)))
    sys.stderr.write(f"{finding}\nthe input ({len(finding.data)} bytes) is in {path}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz every decoder of rlx.")
    parser.add_argument("--inputs", type=int, default=100_000, help="over all decoders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=TARGETS, action="append", help="this decoder alone")
    parser.add_argument("--corpus", type=Path, help="a folder of kept inputs, a file a decoder")
    parser.add_argument("--distil", action="store_true", help="write the files of --corpus anew")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where to put one")
    parser.add_argument("--replay", type=Path, help="run this one input, with --only")
    return parser


def _fuzz(targets: Sequence[Target], options: argparse.Namespace, tallies: list[Tally]) -> None:
    share = -(-options.inputs // len(targets))
    for target in targets:
        reads = options.corpus is not None and not options.distil
        kept = read_corpus(options.corpus, target.name) if reads else []
        distillate = Distillate() if options.distil else None
        tallies.append(fuzz_target(target, share, options.seed, kept, distillate))
        if distillate is not None:
            write_corpus(options.corpus, target.name, distillate.kept())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.distil and options.corpus is None:
        parser.error("--distil needs --corpus, the folder to write")
    if options.replay is not None and len(options.only or ()) != 1:
        parser.error("--replay needs one --only, the decoder of that input")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, and print the table; 1 where something was found, which is printed and kept."""
    options = _options(arguments)
    targets = [TARGETS[name] for name in options.only or TARGETS]
    signal.signal(signal.SIGALRM, _on_alarm)
    for target in targets:
        target.seeds()  # What loads on first use is no part of what an input costs.
    bound_memory(MEMORY_BYTES)
    tallies: list[Tally] = []
    try:
        if options.replay is not None:
            outcome = outcome_of(targets[0], options.replay.read_bytes())
            print(f"{outcome.word}: {outcome.error}" if outcome.error else outcome.word)
            return 0
        _fuzz(targets, options, tallies)
    except Finding as finding:
        sys.stdout.write(as_table(tallies))
        _report(finding, options.keep)
        return 1
    except UsageError as error:
        sys.stderr.write(f"fuzz: {error}\n")
        return 2
    sys.stdout.write(as_table(tallies))
    return 0


if __name__ == "__main__":
    sys.exit(main())
