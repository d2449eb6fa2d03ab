"""The soak: many small worlds, each with one fault at a random moment, and what came of each.

Worlds are threads with a `FaultyTransport`, threads over TCP through a `FaultProxy`, or real
processes. Of each it checks that no rank hangs, that no rank returns a wrong result, that nothing
is left open, and that the right rank is named; and it notes how long the error took. A trial is a
function of the soak's seed and its own number, so that one of them can be run again alone.

    scripts/soak --faults 10000 --seed 1
"""

from rlx.testing.soak.kinds import KINDS
from rlx.testing.soak.report import as_json, as_table
from rlx.testing.soak.trials import Trial, run_trials

__all__ = ["KINDS", "Trial", "as_json", "as_table", "run_trials"]
