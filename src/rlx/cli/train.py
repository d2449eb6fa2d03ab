"""`rlx train`: run the job of a file."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx import job

_DESCRIPTION = """\
Run the job that JOB.toml describes. Without -n and without a launcher the world is one rank; -n N
starts N processes here; under mpirun or srun each process finds its rank from the launcher."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` to the commands of the parser."""
    parser = commands.add_parser(
        "train",
        help="run the job of a file",
        description=_DESCRIPTION,
        epilog=_settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, metavar="JOB.toml", help="the job file")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="how many ranks to start here")
    parser.add_argument(
        "--transport",
        choices=("auto", "tcp", "mpi", "threads"),
        help="how ranks talk, over net.transport; auto is mpi under an MPI launcher, else tcp",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as job.epochs=2; may be given again",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE.safetensors", help="write the parameters at the end"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx train`."""
    job.pin_blas(os.environ)
    overrides = list(options.set)
    if options.transport is not None:
        overrides.append(f"net.transport={options.transport}")
    config = job.load_config(options.job, os.environ, overrides)
    net = config.section("net")
    role = job.role_of(os.environ, net["transport"], options.ranks)
    if role.transport == "tcp" and role.place is None and role.ranks > 1:
        return job.launch_ranks(
            arguments, role.ranks, net["coordinator"], os.environ, debug=options.debug
        )
    save = None if options.save is None else options.save.resolve()
    request = job.Request(config, role, save)
    if not job.is_coordinator(role):
        job.run_job(request, os.environ, None)
        return 0
    from rlx.cli.progress import reporter

    stream = job.progress_stream(os.environ)
    with reporter(stream, int(config.section("job")["epochs"])) as observer:
        outcome = job.run_job(request, os.environ, observer)
    summary = outcome.summary(role.carrier)
    text = json.dumps(_with_null(summary), allow_nan=False) + "\n"
    result = job.result_stream(os.environ)
    result.write(text if options.json else _as_text(summary))
    result.flush()
    return 0


def _with_null(value: Any) -> Any:
    """JSON has no NaN and no infinity; null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _with_null(one) for key, one in value.items()}
    return [_with_null(one) for one in value] if isinstance(value, list) else value


def _as_text(summary: dict[str, Any]) -> str:
    ranks = summary["world_size"]
    over = "" if summary["transport"] == "memory" else f" over {summary['transport']}"
    lines = [
        f"trained on {ranks} rank{'s' * (ranks != 1)}{over}: "
        f"loss {summary['first_loss']:.6g} -> {summary['last_loss']:.6g}, "
        f"{summary['samples']} rows in {summary['wall_s']:.2f} s"
    ]
    if summary["empty_steps"]:
        lines.append(f"{summary['empty_steps']} steps were empty: their weights summed to zero")
    lines += [f"{name} {value:.6g}" for name, value in summary["evaluation"].items()]
    lines.append(f"params sha256 {summary['params_sha256']}")
    return "\n".join(lines) + "\n"


def _settings_help() -> str:
    lines = ["settings of a job file, by section:"]
    for section, settings in job.SECTIONS.items():
        lines.append(f"  [{section}]")
        if not settings:
            lines.append("    NAME           a file, or init:KIND, for a parameter's first value")
        lines += [f"    {key:<14} {_setting_help(setting)}" for key, setting in settings.items()]
    return "\n".join(lines)


def _setting_help(setting: job.Setting) -> str:
    """Its meaning, what it may be, and what it is where nothing is said."""
    if setting.default is job.REQUIRED:
        note = "required"
    elif setting.default is None:
        note = ""
    else:
        shown = str(setting.default)
        note = f"default {shown.lower() if isinstance(setting.default, bool) else shown}"
    return f"{setting.help} ({note})" if note else setting.help
