"""A job, run: from a checked configuration to the result of this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlx.errors import ConfigError
from rlx.group import ProcessGroup
from rlx.job.build import data_roots, evaluation_spec, train_spec
from rlx.job.config import JobConfig
from rlx.job.connect import run_here
from rlx.job.place import Role
from rlx.job.rank import Observer, Outcome, Work, coordinate, work_for

SAVED_ENDING = ".safetensors"


@dataclass(frozen=True)
class Request:
    """What a person asks for beside the job file."""

    config: JobConfig
    role: Role
    save: Path | None = None


def is_coordinator(role: Role) -> bool:
    """Whether this process has rank 0 in it."""
    return role.place is None or role.place.rank == 0


def run_job(request: Request, environ: Mapping[str, str], observer: Observer | None) -> Outcome:
    """Train and evaluate on this process's rank, or on all of them if they are its threads."""
    config = request.config
    roots = data_roots(config)
    # Rank 0 builds its specs before it connects: a mistake in the model should cost no rendezvous.
    work = _work(request) if is_coordinator(request.role) else None

    def body(group: ProcessGroup) -> Outcome:
        if work is not None and group.rank == 0:
            return coordinate(work, group, roots, observer)
        return work_for(group, roots)

    return run_here(request.role, config.section("net"), environ, body)


def _work(request: Request) -> Work:
    if request.save is not None:
        _check_target(request.save)
    return Work(train_spec(request.config), evaluation_spec(request.config), request.save)


def _check_target(path: Path) -> None:
    """Refuse a path that cannot be written now, not after the last epoch."""
    if not path.parent.is_dir():
        raise ConfigError(f"--save {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"--save {path}: that is a folder; name a file")
    if path.suffix.lower() != SAVED_ENDING:
        raise ConfigError(
            f"--save {path}: parameters are written as safetensors, and read again by that ending; "
            f"call the file {path.stem or 'trained'}{SAVED_ENDING}"
        )
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"--save {path}: no file can be written there: {error.strerror}"
        ) from error
