"""`ProcessGroup`: collectives over numpy arrays that cannot silently lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from rlx.errors import DisagreementError, UsageError
from rlx.group import arrays
from rlx.group.calls import described, shown
from rlx.group.canonical import Nodes, Sum, canonical_sum
from rlx.group.folding import Workspace
from rlx.group.lending import allocated
from rlx.group.shuffles import Shuffles
from rlx.group.tree import SumPlan
from rlx.group.window import Window
from rlx.ir import ReduceOp
from rlx.net import POINT_TO_POINT_TAG, Buffer, Deadline, NetTransport

RECEIVE_LIMIT_BYTES = 1 << 30

_READY_CALLS = 256  # signatures of sums that are kept ready


class ProcessGroup(Shuffles):
    """Collectives between all ranks of a transport, called by all in the same order.

    In every collective each rank hears from every other one what that one is calling. Ranks that
    differ in the call, its operator, dtype, shape, root or name all raise `DisagreementError`,
    which shows each side; the group can be used afterwards. After any other error in a collective
    the group is broken, and later calls raise `ClosedError`.

    Arrays are numpy arrays, checked and never coerced. An input is left alone unless it is also
    given as `out`. One thread of a rank uses a group at a time; a second one gets a `UsageError`.

    Parameters
    ----------
    transport
        The group takes it over, and closes it in `close`.
    deadline
        Seconds that one call may take.
    """

    def __init__(self, transport: NetTransport, *, deadline: float = 300.0) -> None:
        super().__init__(transport, deadline=deadline)
        self._workspace = Workspace()
        self._all_ranks = SumPlan.one_leaf_a_rank(transport.world_size)
        self._own_leaf = self._all_ranks.nodes[transport.rank][0]
        self._ready: dict[Hashable, tuple[str, Sum]] = {}

    def all_reduce(
        self,
        array: np.ndarray,
        op: ReduceOp | str = "sum",
        *,
        out: np.ndarray | None = None,
        name: str | None = None,
    ) -> np.ndarray:
        """Combine the arrays of all ranks elementwise; every rank gets the same bits.

        Sums follow the canonical tree over the ranks. float16 and bfloat16 add in float32 and round
        once; integers wrap as numpy's do; max and min propagate NaN.
        """
        result = self._result("all_reduce", arrays.checked("all_reduce", array), out)
        self._reduce("all_reduce", array, op, "", name, result)
        return result

    def reduce(
        self,
        array: np.ndarray,
        op: ReduceOp | str = "sum",
        *,
        root: int = 0,
        name: str | None = None,
    ) -> np.ndarray | None:
        """Like `all_reduce`, with the result on `root` alone; the others get None."""
        result = self._result("reduce", arrays.checked("reduce", array), None)
        self._reduce("reduce", array, op, self._root("reduce", root), name, result)
        return result if self.rank == root else None

    def reduce_scatter(
        self, array: np.ndarray, op: ReduceOp | str = "sum", *, name: str | None = None
    ) -> np.ndarray:
        """Combine the arrays of all ranks and give rank r the r-th part along axis 0.

        The length of axis 0 is a multiple of the world size.
        """
        part = self._part("reduce_scatter", arrays.checked("reduce_scatter", array))
        result = self._result("reduce_scatter", array, None)
        self._reduce("reduce_scatter", array, op, "", name, result)
        return result[self.rank * part : (self.rank + 1) * part].copy()

    def sum_nodes(
        self, plan: SumPlan, nodes: Nodes, out: np.ndarray, *, name: str | None = None
    ) -> np.ndarray:
        """The canonical sum by `plan`: this rank brings its nodes, every rank gets the total in
        `out`.

        `nodes` maps the spans `plan.nodes[rank]` to flat arrays of the length and dtype of `out`.
        """
        if plan.world_size != self.world_size:
            raise UsageError(f"a plan for {plan.world_size} ranks in a world of {self.world_size}")
        if set(nodes) != set(plan.nodes[self.rank]):
            raise UsageError(
                f"rank {self.rank} holds the nodes {list(plan.nodes[self.rank])}; got {list(nodes)}"
            )
        for array in nodes.values():
            if arrays.checked("sum_nodes", array).shape != out.shape or array.dtype != out.dtype:
                raise UsageError(f"sum_nodes: a node is {shown(array)}, out is {shown(out)}")
        key = ("sum_nodes", plan, out.dtype, out.shape, name)
        ready = self._ready.get(key)
        if ready is None:
            details = [f"leaves={plan.leaves}", f"plan={plan.digest()}", shown(out)]
            text = described("sum_nodes", details, name)
            ready = self._prepare(key, text, plan, ReduceOp.SUM, out.size, out.dtype)
        text, canonical = ready
        with self._calling_ready(text) as call:
            canonical.run(nodes, out, call, self._moves)
        return out

    def barrier(self, *, name: str | None = None) -> None:
        """Wait until every rank is here."""
        with self._calling("barrier", [], name) as call:
            self._moves.meet(call)

    def send(self, destination: int, data: Buffer) -> None:
        """Send bytes to one rank, which calls `receive`."""
        self._check_open()
        arrays.checked_bytes("send", data)
        self._transport.send(
            self._peer("send", destination),
            POINT_TO_POINT_TAG,
            data,
            deadline=Deadline(self._deadline_s),
        )

    def receive(self, source: int, *, limit_bytes: int = RECEIVE_LIMIT_BYTES) -> bytes:
        """The bytes that `source` sends next; more than `limit_bytes` is `LimitExceeded`."""
        self._check_open()
        got = self._transport.receive(
            self._peer("receive", source),
            POINT_TO_POINT_TAG,
            limit_bytes=limit_bytes,
            deadline=Deadline(self._deadline_s),
        )
        return bytes(got)

    def empty(self, shape: Sequence[int] | int, dtype: Any = np.float32) -> np.ndarray:
        """A new array where the collectives work best, with no particular content.

        On the transport's heap, where it has one with room: near ranks (of one host) then add in
        place, without a copy. It is an array like any other, and may outlive the group. While a sum
        is under way it is the call's; after one that failed, near ranks may still write to its
        `out`.
        """
        heap = self._transport.heap
        try:
            if heap is None:
                return np.empty(shape, dtype)
            return allocated(heap, shape, np.dtype(dtype))
        except (TypeError, ValueError) as error:
            raise UsageError(f"empty: no array of shape {shape!r}, {dtype!r}: {error}") from error

    def window(
        self, shape: Sequence[int] | int, dtype: Any = np.float32, *, name: str | None = None
    ) -> Window:
        """An array of zeros on every rank that all ranks may `put` to and `get` from.

        Collective: all ranks give the same shape and dtype. See `Window`.
        """
        array = self.empty(shape, dtype)
        arrays.checked("window", array)[...] = 0
        with self._calling("window", [shown(array)], name) as call:
            self._moves.meet(call)
        return Window(array, self.world_size, lambda parts: self.all_to_all_v(parts, name=name))

    def abort(self, reason: str | BaseException) -> None:
        """Tell the other ranks why this one gives up; their waits raise `RemoteError`.

        After a `DisagreementError`, which every rank raises, it is the same as `close`.
        """
        self._broken = f"rank {self.rank} aborted"
        if isinstance(reason, DisagreementError):
            # Every rank raises the same one by itself, from messages that a notice might overtake.
            self._transport.close()
        else:
            self._transport.abort(reason)

    def close(self) -> None:
        """Leave in order. Twice is fine."""
        self._broken = self._broken or "the group is closed"
        self._transport.close()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            if self.world_size > 1:
                # Several ranks may print to one place: a traceback says whose it is.
                error.add_note(f"on rank {self.rank} of {self.world_size}")
            self.abort(error)
        self.close()

    def _reduce(
        self,
        name: str,
        array: np.ndarray,
        op: ReduceOp | str,
        more: str,
        caller_name: str | None,
        out: np.ndarray,
    ) -> None:
        key = (name, op, array.dtype, array.shape, more, caller_name)
        ready = self._ready.get(key) if isinstance(op, str | ReduceOp) else None
        if ready is None:
            reduction = arrays.operator(name, op, array)
            details = [reduction.name.lower(), shown(array), *filter(None, [more])]
            text = described(name, details, caller_name)
            ready = self._prepare(key, text, self._all_ranks, reduction, array.size, array.dtype)
        text, canonical = ready
        nodes = {self._own_leaf: arrays.flat(array)}
        with self._calling_ready(text) as call:
            canonical.run(nodes, out.reshape(-1), call, self._moves)

    def _prepare(
        self,
        key: Hashable,
        text: str,
        plan: SumPlan,
        op: ReduceOp,
        length: int,
        dtype: np.dtype[Any],
    ) -> tuple[str, Sum]:
        """What a call of this signature needs, worked out once and kept."""
        canonical = canonical_sum(
            plan,
            self.rank,
            length,
            dtype,
            combine=arrays.combiner(op),
            accumulate_in=arrays.accumulation(dtype),
            divisor=self.world_size if op is ReduceOp.MEAN else None,
            workspace=self._workspace,
            heap=self._transport.heap,
        )
        if len(self._ready) >= _READY_CALLS:
            self._ready.pop(next(iter(self._ready)))
        self._ready[key] = text, canonical
        return text, canonical
