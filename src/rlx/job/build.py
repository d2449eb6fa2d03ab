"""A job's settings and graphs to what the run takes: `TrainSpec` and `EvaluationSpec`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlx.autodiff import grad_with_loss
from rlx.dist import (
    Adam,
    AdamW,
    DataRef,
    EvaluationSpec,
    Optimizer,
    Sgd,
    TrainSpec,
    WeightRef,
)
from rlx.errors import ConfigError
from rlx.ir import DROPOUT_KEY, Graph
from rlx.job.config import JobConfig
from rlx.job.model import load_graph


def train_spec(config: JobConfig) -> TrainSpec:
    """The spec of the job's run. Loads the model; for the coordinator alone."""
    job = config.section("job")
    graph = load_graph(job["graph"], config.folder)
    names = [node.name for node in graph.params]
    if not names:
        raise ConfigError(f"graph {job['graph']!r} has no parameters to train")
    weight = job["weight_output"]
    if weight is not None and weight >= len(graph.outputs):
        raise ConfigError(
            f"job.weight_output is {weight}, but graph {job['graph']!r} has "
            f"{len(graph.outputs)} outputs, the loss being 0"
        )
    optimizer = config.section("optimizer")
    return TrainSpec(
        graph=grad_with_loss(graph, names),
        params=[WeightRef(name, _first_value(config, graph, name)) for name in names],
        data=_data_refs(config, graph, job["data"], "job"),
        lr_per_epoch=_rates(optimizer["lr"], job["epochs"]),
        batch=job["batch"],
        weight_index=None if weight is None else len(names) + weight,
        momentum=float(optimizer["momentum"]),
        optimizer=_optimizer(optimizer),
        global_batch=job["global_batch"],
        shuffle_seed=job["shuffle_seed"],
        lanes=job["lanes"],
        push_data=job["push_data"],
        dropout_seed=job["dropout_seed"],
        backend=job["backend"],
        device=job["device"],
        strict=job["strict"],
    )


def evaluation_spec(config: JobConfig) -> EvaluationSpec | None:
    """The spec of the job's evaluation, if it has one. Loads the model."""
    section = config.section("evaluation")
    if not section:
        return None
    graph = load_graph(section["graph"], config.folder)
    return EvaluationSpec(
        graph=graph,
        names=section["figures"],
        data=_data_refs(config, graph, section["data"], "evaluation"),
        batch=section["batch"],
        push_data=config.section("job")["push_data"],
        backend=config.section("job")["backend"],
        device=config.section("job")["device"],
    )


def data_roots(config: JobConfig) -> list[Path]:
    """The folders that a rank may read from: the job's own, and those of files that it names."""
    named = [
        *config.section("job")["data"].values(),
        *config.section("evaluation").get("data", {}).values(),
        *(value for value in config.section("params").values() if not value.startswith("init:")),
    ]
    return sorted({config.folder, *(_path(config, value)[0].parent for value in named)})


def _data_refs(
    config: JobConfig, graph: Graph, data: Mapping[str, str], section: str
) -> list[DataRef]:
    inputs = {node.name: node for node in graph.inputs if node.name != DROPOUT_KEY}
    refs = []
    for name, value in data.items():
        if name not in inputs:
            known = ", ".join(inputs) or "none"
            raise ConfigError(f"{section}.data has {name!r}; the graph's inputs are: {known}")
        dims = inputs[name].shape.dims[1:]
        if not all(isinstance(dim, int) for dim in dims):
            raise ConfigError(f"input {name!r} is {inputs[name].type}: only axis 0 may have a name")
        refs.append(DataRef(name, _uri(config, value), math.prod(int(dim) for dim in dims)))
    return refs


def _first_value(config: JobConfig, graph: Graph, name: str) -> str:
    given = config.section("params")
    unknown = set(given) - {node.name for node in graph.params}
    if unknown:
        raise ConfigError(
            f"[params] has {', '.join(sorted(unknown))}, which the graph has not; its parameters "
            f"are: {', '.join(node.name for node in graph.params)}"
        )
    if name in given:
        value: str = given[name]
        return value if value.startswith("init:") else _uri(config, value)
    if graph[name].shape.rank < 2:
        return "init:zeros"
    return f"init:glorot_uniform?seed={config.section('job')['init_seed']}"


def _path(config: JobConfig, value: str) -> tuple[Path, str]:
    name, _, tensor = value.partition("#")
    return (config.folder / name).resolve(), tensor


def _uri(config: JobConfig, value: str) -> str:
    path, tensor = _path(config, value)
    return f"file://{quote(str(path))}" + (f"#{quote(tensor)}" if tensor else "")


def _rates(lr: Any, epochs: int) -> list[float]:
    if not isinstance(lr, list):
        return [float(lr)] * epochs
    if len(lr) != epochs:
        raise ConfigError(
            f"optimizer.lr has {len(lr)} rates for {epochs} epochs; give one for each"
        )
    return [float(rate) for rate in lr]


def _optimizer(section: Mapping[str, Any]) -> Optimizer:
    kind = section["kind"]
    if kind == "sgd":
        return Sgd()
    shared = {key: float(section[key]) for key in ("beta1", "beta2", "epsilon")}
    if kind == "adam":
        return Adam(**shared)
    return AdamW(**shared, weight_decay=float(section["weight_decay"]))
