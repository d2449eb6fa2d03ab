"""Measured comparisons: what starting costs, and what a collective costs.

Machines are shared and noisy, so things are compared in one run, in turns, and reported as medians
and ratios of medians. This room measures; it asserts nothing. Only `cli` uses it.
"""

from rlx.bench.collectives import measure_collectives
from rlx.bench.startup import measure_startup
from rlx.bench.tables import Row, as_json, as_table

__all__ = ["Row", "as_json", "as_table", "measure_collectives", "measure_startup"]
