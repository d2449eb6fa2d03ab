"""The smallest job, in Python: a coordinator ships it to a worker that has no model code.

Both ranks are threads here. Swap `MemoryTransport.mesh` for `TcpTransport` or `MpiTransport`, and
nothing else changes. Run it as `python examples/linear_regression/train.py`.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np

from rlx import DataRef, Graph, ProcessGroup, TrainSpec, WeightRef, grad_with_loss
from rlx.dist import TrainReport, params_digest, run_train, serve_trainer_here, ship_train
from rlx.net import MemoryTransport

TRUE_WEIGHTS = np.array([[2.0], [-1.0], [0.5]], np.float32)
ROWS = 64


def write_rows(folder: Path) -> None:
    """Rows of three features, and what the true weights make of them."""
    x = np.random.Generator(np.random.Philox(3)).uniform(-1, 1, (ROWS, 3)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x @ TRUE_WEIGHTS)


def job(folder: Path) -> TrainSpec:
    """The mean square of x @ w - y, with its gradient; 16 rows a step, as two microbatches."""
    graph = Graph("linear_regression")
    x = graph.input("x", ["batch", 3])
    y = graph.input("y", ["batch", 1])
    w = graph.param("w", [3, 1])
    difference = x @ w - y
    graph.set_outputs([(difference * difference).mean()])
    return TrainSpec(
        graph=grad_with_loss(graph, [w]),
        params=[WeightRef("w", "init:zeros")],
        data=[
            DataRef("x", f"file://{folder}/x.npy", elem=3),
            DataRef("y", f"file://{folder}/y.npy", elem=1),
        ],
        lr_per_epoch=[0.3] * 30,
        batch=8,
        global_batch=16,
        shuffle_seed=1,
    )


def main() -> None:
    """Train on two ranks; both end with the same bits."""
    coordinator, worker = (ProcessGroup(one) for one in MemoryTransport.mesh(2))
    reports: list[TrainReport] = []
    thread = threading.Thread(target=lambda: reports.append(serve_trainer_here(worker)))
    thread.start()
    with tempfile.TemporaryDirectory() as folder, coordinator, worker:
        write_rows(Path(folder))
        spec = job(Path(folder))
        ship_train(coordinator, 1, spec)
        metrics, params = run_train(spec, coordinator)
        thread.join()
    print(f"loss {metrics.first_loss:.4f} -> {metrics.last_loss:.2e}")
    print(f"w {params['w'].ravel()}, true {TRUE_WEIGHTS.ravel()}")
    print(f"rank 0 {params_digest(params)}")
    print(f"rank 1 {params_digest(reports[0].params)}")


if __name__ == "__main__":
    main()
