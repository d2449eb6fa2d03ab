"""`rlx inspect`: what a job is, and what a step of it would run, without running it."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlx import job
from rlx.errors import ConfigError

_DESCRIPTION = """\
Show what JOB.toml is: its parameters, data, steps, and what a microbatch costs. Nothing is trained.

With --graph, the graph that every rank gets, gradients included, one node a line. With --plan, what
a lane runs for one microbatch: each numpy call in order, each buffer with its lifetime, and bytes.
The numbers of nodes (%12) are the same in both. The plan of a job with backend = "jax" is XLA's own
text of the program that it compiled."""

_COSTS = {
    "numpy": "{calls} calls, arena of {arena_bytes:,} bytes",
    "jax": "{argument_bytes:,} bytes of arguments, {result_bytes:,} of results, "
    "{temporary_bytes:,} between",
}
"""What a plan costs, by backend."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `inspect` to the commands of the parser."""
    parser = commands.add_parser(
        "inspect",
        help="show what a job is, its graph, or its plan",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, metavar="JOB.toml", help="the job file")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--graph", action="store_true", help="print the graph with its gradients")
    what.add_argument("--plan", action="store_true", help="print calls, buffers and bytes")
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="rows of the microbatch to plan, in place of job.batch",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as job.batch=32; may be given again",
    )
    parser.add_argument(
        "--json", action="store_true", help="print what the job is as one JSON line"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Carry out `rlx inspect`."""
    if options.json and (options.graph or options.plan):
        raise ConfigError("--json shows what the job is; leave out --graph and --plan")
    if options.rows is not None and options.rows < 1:
        raise ConfigError(f"--rows is at least 1; got {options.rows}")
    job.pin_blas(os.environ)
    found = job.inspect_job(job.load_config(options.job, os.environ, options.set))
    result = job.result_stream(os.environ)
    result.write(_shown(found, options))
    result.flush()
    return 0


def _shown(found: job.Inspection, options: argparse.Namespace) -> str:
    if options.graph:
        return found.spec.graph.describe()
    if options.plan:
        return found.plan(options.rows).describe()
    facts = _facts(found, options.rows)
    return json.dumps(facts) + "\n" if options.json else _as_text(facts)


def _facts(found: job.Inspection, rows: int | None) -> dict[str, Any]:
    """What the job is, as `--json` prints it."""
    spec, bound = found.spec, found.plan(rows)
    nodes = {ref.name: spec.graph[ref.name].node for ref in spec.params}
    elements = {name: math.prod(node.shape.bind({})) for name, node in nodes.items()}
    return {
        "job": str(found.config.path),
        "graph": spec.graph.name,
        "graph_sha256": spec.graph.digest(),
        "spec_sha256": spec.digest(),
        "params": [
            {
                "name": ref.name,
                "dtype": str(nodes[ref.name].dtype),
                "shape": list(nodes[ref.name].shape.bind({})),
                "bytes": elements[ref.name] * nodes[ref.name].dtype.itemsize,
                "uri": ref.uri,
            }
            for ref in spec.params
        ],
        "data": [
            {"name": ref.input, "type": str(spec.graph[ref.input].node.type), "uri": ref.uri}
            for ref in spec.data
        ],
        "optimizer": type(spec.optimizer).__name__.lower(),
        "rows": found.rows,
        "epochs": spec.epochs,
        "steps_per_epoch": found.steps,
        "rows_per_step": spec.step_rows,
        "rows_per_microbatch": spec.batch,
        "lanes": spec.lanes,
        "backend": spec.backend,
        "plan": {
            "bindings": dict(bound.bindings),
            **bound.costs(),
        },
    }


def _as_text(facts: dict[str, Any]) -> str:
    params, data, plan = facts["params"], facts["data"], facts["plan"]
    last = facts["rows"] % facts["rows_per_step"]
    total = sum(one["bytes"] for one in params)
    bound = "".join(f" with {name}={size}" for name, size in plan["bindings"].items())
    name_width = max(len(one["name"]) for one in (*params, *data))
    return "\n".join(
        [
            f"job         {facts['job']}",
            f"graph       {facts['graph']!r}, sha256 {facts['graph_sha256'][:16]}",
            f"spec        sha256 {facts['spec_sha256'][:16]}",
            f"parameters  {len(params)}, {total:,} bytes",
            *(
                f"  {one['name']:<{name_width}}  {one['dtype']}{one['shape']}  {one['uri']}"
                for one in params
            ),
            f"data        {facts['rows']:,} rows",
            *(f"  {one['name']:<{name_width}}  {one['type']}  {one['uri']}" for one in data),
            f"steps       {facts['epochs']} epochs of {facts['steps_per_epoch']} steps, by "
            f"{facts['optimizer']}",
            f"step        {facts['rows_per_step']} rows"
            + (f", the last of an epoch {last}" if last else "")
            + f", in microbatches of {facts['rows_per_microbatch']}",
            f"plan        of a microbatch{bound}: {_COSTS[facts['backend']].format(**plan)}; "
            f"one for each of {facts['lanes']} lane(s)",
            "",
        ]
    )
