"""Measured comparisons: what starting, a step, collectives and links cost.

Machines are shared and noisy, so things are compared in one run, in turns, and reported as medians
and ratios of medians. This room measures; it asserts nothing. Only `cli` uses it. Other libraries
are measured where they are installed, in processes that are started for it.
"""

from rlx.bench.calls import CALLS, SIZES_BYTES
from rlx.bench.collectives import (
    Collectives,
    collectives_json,
    collectives_table,
    measure_collectives,
)
from rlx.bench.contenders import CONTENDERS, baseline_named, contender_named
from rlx.bench.first import First, first_json, first_table, measure_first
from rlx.bench.goals import CONTENDERS as GOALS_CONTENDERS
from rlx.bench.goals import goals_json, goals_table, measure_goals
from rlx.bench.links import SIZES_BYTES as LINK_SIZES_BYTES
from rlx.bench.links import Links, links_json, links_table, measure_links
from rlx.bench.models import MODELS
from rlx.bench.stages import OwnRanks, Stage, StartedWorlds
from rlx.bench.startup import measure_startup
from rlx.bench.steps import Case, Steps, cases, measure_steps
from rlx.bench.subjects import NativeMpiSubject, RlxSubject, version_of_mpi
from rlx.bench.tables import Row, as_json, as_table

__all__ = [
    "CALLS",
    "CONTENDERS",
    "GOALS_CONTENDERS",
    "LINK_SIZES_BYTES",
    "MODELS",
    "SIZES_BYTES",
    "Case",
    "Collectives",
    "First",
    "Links",
    "NativeMpiSubject",
    "OwnRanks",
    "RlxSubject",
    "Row",
    "Stage",
    "StartedWorlds",
    "Steps",
    "as_json",
    "as_table",
    "baseline_named",
    "cases",
    "collectives_json",
    "collectives_table",
    "contender_named",
    "first_json",
    "first_table",
    "goals_json",
    "goals_table",
    "links_json",
    "links_table",
    "measure_collectives",
    "measure_first",
    "measure_goals",
    "measure_links",
    "measure_startup",
    "measure_steps",
    "version_of_mpi",
]
