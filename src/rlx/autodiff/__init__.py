"""Graph in, graph out: reverse-mode gradients, built from one VJP rule for each op.

A gradient is a graph like any other: it can be printed, checked, shipped and differentiated again.
This room runs nothing and knows no arrays.
"""

from rlx.autodiff.reverse import SEED_INPUT, grad, grad_with_loss
from rlx.autodiff.rules import VJP

__all__ = ["SEED_INPUT", "VJP", "grad", "grad_with_loss"]
