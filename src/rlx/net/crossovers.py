"""The sizes at which one way of moving bytes gives place to another: one table for all forms.

None of them changes a bit of any result. Each was measured on a host of two cores, both ways taken
alternately in one run; the figures are in `docs/performance.md`. On other machines the best values
differ by small factors, and so does what a wrong one costs.
"""

from __future__ import annotations

from typing import Final

WHOLE_SUM_BYTES: Final = 16 * 1024
"""A sum: a vector up to this size goes whole to every rank, in one round; a larger one goes in
pieces, in two. Not over `EXPRESS_BYTES`: beyond it one round already costs as much as two."""

EXPRESS_BYTES: Final = 16 * 1024
"""TCP and rings: a content up to this size goes the express way, as one string of bytes with its
header. It fits into a link's buffer."""

JOIN_BYTES: Final = 16 * 1024
"""TCP and rings: the pieces of a content up to this size are joined and sent by one plain call."""

DIRECT_BYTES: Final = 16 * 1024
"""TCP and rings: what is left of a content above this is read straight into its slot; below, one
call that also takes the next header is cheaper than the copy that it saves."""

COPY_BYTES: Final = 64 * 1024
"""Threads: up to this size a copy costs less than the wake-up of a sender that waits for it to be
read."""

INLINE_BYTES: Final = 128 * 1024
"""MPI: a content up to this size rides in the header's message, and its sender waits for nobody."""

PACK_BYTES: Final = 64 * 1024
"""MPI: of a larger content, neighbouring buffers are copied into one piece up to this size."""
