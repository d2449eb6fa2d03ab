"""What an all-reduce costs between ranks that are threads of one process, memory against TCP."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlx.bench.tables import Row, compared
from rlx.group import ProcessGroup
from rlx.job import run_threads
from rlx.net import MemoryTransport, NetTransport, TcpTransport

SIZES_BYTES = (4, 4 << 10, 256 << 10, 4 << 20)
_WARM_UPS = 3


def measure_collectives(world_size: int = 2, repeats: int = 30) -> list[Row]:
    """Seconds of an in-place float32 sum of each size, the slowest rank's, by each transport.

    The transports take turns, so that what else the machine does meets both. Threads share one
    interpreter lock: between processes TCP does better than this.
    """
    rows = []
    for size in SIZES_BYTES:
        samples: dict[str, list[float]] = {}
        for _ in range(3):
            for transport in ("memory", "tcp"):
                name = f"all_reduce {size} B, {world_size} ranks, {transport}"
                samples.setdefault(name, []).extend(_timed(world_size, transport, size, repeats))
        rows += compared(samples, f"all_reduce {size} B, {world_size} ranks, memory")
    return rows


def _timed(world_size: int, transport: str, size: int, repeats: int) -> list[float]:
    def body(group: ProcessGroup) -> list[float]:
        array = np.zeros(size // 4, np.float32)
        seconds = []
        for number in range(repeats + _WARM_UPS):
            begun = time.perf_counter()
            group.all_reduce(array, out=array)
            if number >= _WARM_UPS:
                seconds.append(time.perf_counter() - begun)
        return seconds

    mesh = _tcp_mesh(world_size) if transport == "tcp" else MemoryTransport.mesh(world_size)
    by_rank = run_threads([ProcessGroup(one) for one in mesh], body)
    return [max(each) for each in zip(*by_rank, strict=True)]


def _tcp_mesh(world_size: int) -> list[NetTransport]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(world_size)]
    addresses = [listener.getsockname() for listener in listeners]

    def join(rank: int) -> NetTransport:
        return TcpTransport.from_listener(rank, world_size, listeners[rank], addresses)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(join, range(world_size)))
