"""One table, `KERNELS`: for each op, the numpy calls that compute it.

Every call writes into memory that the plan owns (`out`), so that a step allocates nothing.
"""

from rlx.backends.kernels import compositions as compositions
from rlx.backends.kernels import contraction as contraction
from rlx.backends.kernels import elementwise as elementwise
from rlx.backends.kernels import indexing as indexing
from rlx.backends.kernels import masks as masks
from rlx.backends.kernels import reductions as reductions
from rlx.backends.kernels import shaping as shaping
from rlx.backends.kernels import sources as sources
from rlx.backends.kernels.table import KERNELS, Call, Emitter, Fill, Kernel, label_of

__all__ = ["KERNELS", "Call", "Emitter", "Fill", "Kernel", "label_of"]
