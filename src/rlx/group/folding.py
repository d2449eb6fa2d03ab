"""The adding of a canonical sum: arrays in, one array out, in the tree's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.group.program import Program


class Workspace:
    """Scratch arrays that are kept between calls, so that a steady state allocates nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, np.ndarray] = {}

    def array(self, key: str, elements: int, dtype: np.dtype[Any]) -> np.ndarray:
        """`elements` elements with no particular content; the same memory for the same key."""
        needed = elements * dtype.itemsize
        kept = self._kept.get(key)
        if kept is None or kept.nbytes < needed:
            kept = np.empty(needed, np.uint8)
            self._kept[key] = kept
        return kept[:needed].view(dtype)


class Folding:
    """Runs a program over arrays of one length.

    Additions are made in `accumulate_in`; the result is divided, where there is a divisor, and
    rounded to the dtype of `out`, once.
    """

    def __init__(
        self,
        program: Program,
        length: int,
        combine: np.ufunc,
        accumulate_in: np.dtype[Any],
        divisor: int | None,
        workspace: Workspace,
    ) -> None:
        self._program = program
        self._length = length
        self._combine = combine
        self._dtype = accumulate_in
        self._divisor = divisor
        self._workspace = workspace
        # A sum of floats may overflow to infinity or meet one: IEEE's answer, and no warning.
        self._is_exact = accumulate_in.kind in "biu"

    def into(self, out: np.ndarray, nodes: Sequence[np.ndarray]) -> None:
        """Add the nodes, in the program's order, into `out`.

        The nodes are left alone, also where one of them is `out` itself: it is written by the last
        addition.
        """
        if self._is_exact:
            self._run(out, nodes)
        else:
            with np.errstate(all="ignore"):
                self._run(out, nodes)

    def _run(self, out: np.ndarray, nodes: Sequence[np.ndarray]) -> None:
        program, combine, dtype = self._program, self._combine, self._dtype
        if not program.steps:
            self._finish(out, nodes[program.result])
            return
        if len(program.steps) == 1 and out.dtype == dtype:
            _, left, right = program.steps[0]
            combine(nodes[left], nodes[right], out=out, dtype=dtype)
            self._finish(out, out)
            return
        registers = [*nodes, *self._scratch()]
        *steps, (target, left, right) = program.steps
        for place, one, other in steps:
            combine(registers[one], registers[other], out=registers[place], dtype=dtype)
        total = out if out.dtype == dtype else registers[target]
        combine(registers[left], registers[right], out=total, dtype=dtype)
        self._finish(out, total)

    def _scratch(self) -> list[np.ndarray]:
        count, length = self._program.scratch, self._length
        whole = self._workspace.array("sums", count * length, self._dtype)
        return [whole[place * length : (place + 1) * length] for place in range(count)]

    def _finish(self, out: np.ndarray, total: np.ndarray) -> None:
        if self._divisor:
            np.divide(total, self._divisor, out=out, dtype=self._dtype, casting="same_kind")
        elif total is not out:
            np.copyto(out, total, casting="same_kind")
