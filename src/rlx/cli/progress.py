"""What rank 0 says while a run goes on: a bar on a terminal, else one line an epoch."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rlx.dist import Progress


@contextmanager
def reporter(stream: TextIO, epochs: int) -> Iterator[Callable[[Progress], None]]:
    """An observer that reports to `stream`; a bar if it is a terminal."""
    if stream.isatty():
        with _bar(stream, epochs) as observer:
            yield observer
    else:
        yield _Lines(stream)


class _Lines:
    """One line an epoch, and one for each empty step and for the first loss that is no number."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._diverged = False

    def __call__(self, progress: Progress) -> None:
        if progress.is_empty:
            self._stream.write(
                f"epoch {progress.epoch}, step {progress.step}: empty, its weights sum to zero\n"
            )
        elif not (self._diverged or math.isfinite(progress.loss)):
            self._diverged = True
            self._stream.write(
                f"epoch {progress.epoch}, step {progress.step}: the loss is {progress.loss}; "
                f"a lower optimizer.lr may help\n"
            )
        if progress.ends_epoch:
            self._stream.write(
                f"epoch {progress.epoch}/{progress.epochs}  loss {progress.epoch_loss:.6g}  "
                f"lr {progress.lr:g}\n"
            )
            self._stream.flush()


@contextmanager
def _bar(stream: TextIO, epochs: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.5g}"),
        TimeRemainingColumn(),
    )
    # rich looks for the width, and for prints to lift above the bar, at the standard streams. Where
    # a launcher started this rank, they are pipes, whose lines the launcher lifts.
    is_ours = stream is sys.stderr
    width = None if is_ours else os.get_terminal_size(stream.fileno()).columns or 80
    console = Console(file=stream, width=width)
    with Bar(*columns, console=console, redirect_stdout=is_ours, redirect_stderr=is_ours) as bar:
        task = bar.add_task("epoch 0", total=None, loss=float("nan"))

        def observe(progress: Progress) -> None:
            bar.update(
                task,
                total=progress.epochs * progress.steps,
                completed=(progress.epoch - 1) * progress.steps + progress.step,
                description=f"epoch {progress.epoch}/{epochs}",
                loss=progress.epoch_loss,
            )

        yield observe
