"""The worlds of the soak's threads. Those that survive their faults are used again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlx.group import ProcessGroup
from rlx.net import NetTransport
from rlx.testing.meshes import make_mesh
from rlx.testing.outcomes import Outcome, watch_ranks
from rlx.testing.proxy import FaultProxy, Route, proxied_mesh
from rlx.testing.soak.trials import LONGEST_WAIT_S

SIZES = (2, 3, 4)
HEARTBEAT_S = 1.0
_FIRST_HEARTBEATS_S = 0.25


class Proxied:
    """A mesh over TCP with a proxy on every link."""

    def __init__(self, size: int, heartbeat_s: float) -> None:
        self.proxy = FaultProxy()
        self.transports, self.routes = proxied_mesh(
            self.proxy,
            size,
            heartbeat_s=heartbeat_s,
            # What a changed header asks for is refused above this, and costs no memory.
            frame_limit_bytes=1 << 24,
            inbox_limit_bytes=1 << 24,
        )

    def warm_up(self) -> None:
        """Meet once, and let the first heartbeats pass: before those a rank is given more time."""
        watch(self.transports, lambda group: group.barrier())
        time.sleep(_FIRST_HEARTBEATS_S)

    def links_of(self, rank: int) -> list[Route]:
        """The routes between a rank and all others."""
        return [route for link, route in self.routes.items() if rank in link]

    def close(self) -> None:
        """Close the ranks, then the proxy."""
        close_all(self.transports)
        self.proxy.close()


class Worlds:
    """Meshes for faults that they survive; a mesh that did not is made anew."""

    def __init__(self) -> None:
        self._plain: dict[tuple[str, int], list[NetTransport]] = {}
        self._proxied: dict[int, Proxied] = {}

    def plain(self, form: str, size: int) -> list[NetTransport]:
        """A mesh of "memory" or "tcp"."""
        if (form, size) not in self._plain:
            self._plain[form, size] = make_mesh(form, size)
        return self._plain[form, size]

    def proxied(self, size: int) -> Proxied:
        """A mesh through a proxy."""
        if size not in self._proxied:
            self._proxied[size] = Proxied(size, heartbeat_s=30.0)
        return self._proxied[size]

    def prepare(self) -> None:
        """Make what is missing, so that it is not taken for something that was left open."""
        for size in SIZES:
            self.proxied(size)
            for form in ("memory", "tcp"):
                self.plain(form, size)

    def discard(self, used: Any) -> None:
        """Close a mesh that did not survive; the next one to ask gets a new one."""
        for size, proxied in list(self._proxied.items()):
            if proxied is used:
                self._proxied.pop(size).close()
        for key, plain in list(self._plain.items()):
            if plain is used:
                close_all(self._plain.pop(key))

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *exception: object) -> None:
        for mesh in self._plain.values():
            close_all(mesh)
        for proxied in self._proxied.values():
            proxied.close()


def close_all(transports: Sequence[NetTransport]) -> None:
    """Close the ranks of a mesh at the same time, as they would: each waits a bit for the rest."""
    with ThreadPoolExecutor(len(transports)) as pool:
        list(pool.map(lambda one: one.close(), transports))


def watch(
    transports: Sequence[NetTransport],
    body: Callable[[ProcessGroup], Any],
    deadline_s: float = 20.0,
) -> list[Outcome | None]:
    """`watch_ranks` with a group on each transport, which is aborted where its rank fails."""

    def on_rank(one: NetTransport) -> Any:
        group = ProcessGroup(one, deadline=deadline_s)
        try:
            return body(group)
        except BaseException as error:
            group.abort(error)
            raise

    return watch_ranks(transports, on_rank, watchdog_s=LONGEST_WAIT_S)
