"""The coordinator ships a spec; a worker that has no model code receives and serves it."""

from __future__ import annotations

from rlx.dist.files import uri_resolver
from rlx.dist.metrics import TrainReport
from rlx.dist.sources import Resolver
from rlx.dist.spec import SPEC_LIMIT_BYTES, TrainSpec
from rlx.dist.train import run_train
from rlx.group import ProcessGroup


def ship_train(group: ProcessGroup, rank: int, spec: TrainSpec) -> None:
    """Send `spec` to one worker, point to point, as its canonical bytes."""
    group.send(rank, spec.to_bytes())


def recv_train(group: ProcessGroup, source: int = 0) -> TrainSpec:
    """The spec that `source` ships; bytes that are not one are a `WireError`."""
    return TrainSpec.from_bytes(group.receive(source, limit_bytes=SPEC_LIMIT_BYTES + 4096))


def serve_trainer_here(group: ProcessGroup, *, resolve: Resolver = uri_resolver) -> TrainReport:
    """Receive a spec from rank 0, train, and report. This rank needs no model code.

    If it raises, the other ranks have been told (`group.abort`).
    """
    try:
        spec = recv_train(group)
    except BaseException as error:
        group.abort(error)
        raise
    metrics, params = run_train(spec, group, resolve=resolve)
    return TrainReport(group.rank, metrics, params)
