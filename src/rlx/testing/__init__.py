"""For users' tests and ours: ranks as threads, the laws of a transport, and checks of gradients.

It may use every room but `cli`, and no room uses it.
"""

from rlx.testing.gradcheck import check_gradients
from rlx.testing.meshes import make_mesh, run_on_mesh, run_ranks

__all__ = ["check_gradients", "make_mesh", "run_on_mesh", "run_ranks"]
