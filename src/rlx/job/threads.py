"""All ranks as threads of this process, over the memory transport."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlx.group import ProcessGroup
from rlx.job.rank import Outcome
from rlx.net import MemoryTransport


def run_threads(ranks: int, deadline_s: float, body: Callable[[ProcessGroup], Outcome]) -> Outcome:
    """Run `body` on each rank; return rank 0's outcome, or raise the error of the first to fail."""
    groups = [
        ProcessGroup(transport, deadline=deadline_s) for transport in MemoryTransport.mesh(ranks)
    ]
    outcomes: dict[int, Outcome] = {}
    failures: list[BaseException] = []

    def run(group: ProcessGroup) -> None:
        try:
            outcomes[group.rank] = body(group)
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
    return outcomes[0]
