"""What a process that `RankProcesses` started does: join the mesh, run one function, report.

    python -m rlx.testing.process_rank TASK

TASK is JSON. What the rank has to say goes, as one line of JSON, to a pipe of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from rlx import job
from rlx.errors import UsageError
from rlx.group import ProcessGroup
from rlx.net import Deadline, TcpTransport
from rlx.testing.outcomes import Failure, failure_of


def main() -> int:
    """Run the task of the command line; 0 where its function returned."""
    job.tie_to_launcher(os.environ)
    job.pin_blas(os.environ)
    task = json.loads(sys.argv[1])
    failures: list[Failure] = []
    report: dict[str, Any] = {"finished": False, "result": None, "failure": None}
    try:
        report["result"] = json.loads(json.dumps(_run(task, failures)))
        report["finished"] = True
    except BaseException as error:  # the rank's outermost edge
        first = failures[0] if failures else failure_of(error)
        report["failure"] = asdict(first)
        sys.stderr.write(first.traceback)
    with os.fdopen(task["report_fd"], "w") as pipe:
        pipe.write(json.dumps(report) + "\n")
    return 0 if report["finished"] else 1


def _run(task: dict[str, Any], failures: list[Failure]) -> Any:
    """The function's result. Its error is noted as it is raised, before the others are told."""
    transport = TcpTransport.from_listener(
        task["rank"],
        task["world_size"],
        socket.socket(fileno=task["listener_fd"]),
        [tuple(address) for address in task["addresses"]],
        heartbeat_s=task["heartbeat_s"],
        shared_memory=task["shared_memory"],
        deadline=Deadline(task["join_s"]),
    )
    with ProcessGroup(transport, deadline=task["deadline_s"]) as group:
        try:
            # Users' modules load inside, so that what goes wrong in them is told to the others.
            return _function(task["function"])(group, *task["arguments"])
        except BaseException as error:
            failures.append(failure_of(error))
            raise


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    sys.path.insert(0, os.getcwd())
    found = getattr(import_module(module), name, None)
    if not callable(found):
        raise UsageError(f"there is no function {name!r} in the module {module!r}")
    return found  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main())
