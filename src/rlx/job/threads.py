"""All ranks as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from rlx.group import ProcessGroup

T = TypeVar("T")


def run_threads(groups: Sequence[ProcessGroup], body: Callable[[ProcessGroup], T]) -> list[T]:
    """Run `body` on each rank, rank 0 in this thread; return what they return, in rank order.

    A rank that raises aborts its group, so that the others end; the error of the first to fail is
    raised. All groups are closed.
    """
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(group: ProcessGroup) -> None:
        try:
            results[group.rank] = body(group)
        except BaseException as error:  # a rank's outermost edge: told to the others, then raised
            failures.append(error)
            group.abort(error)
        finally:
            group.close()

    threads = [
        threading.Thread(target=run, args=(group,), name=f"rlx-rank-{group.rank}", daemon=True)
        for group in groups[1:]
    ]
    for thread in threads:
        thread.start()
    run(groups[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[group.rank] for group in groups]
