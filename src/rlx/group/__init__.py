"""Arrays between ranks: collectives, their stamps, and the canonical sum.

This room turns arrays into bytes for a transport; it opens no socket and knows no training.
"""

from rlx.group.arrays import accumulation
from rlx.group.group import ProcessGroup
from rlx.group.tree import Span, SumPlan, contiguous_ranges, cover, fold, pieces, split
from rlx.group.window import Window

__all__ = [
    "ProcessGroup",
    "Span",
    "SumPlan",
    "Window",
    "accumulation",
    "contiguous_ranges",
    "cover",
    "fold",
    "pieces",
    "split",
]
