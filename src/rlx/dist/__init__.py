"""A training run: specs and their references, rows and shards, optimisers, training and serving.

This room plans and runs the steps of a job on one rank; it opens no socket, reads no environment
and knows no job file.
"""

from rlx.dist.digest import params_digest
from rlx.dist.evaluate import EvaluationSpec, evaluate
from rlx.dist.files import file_resolver, uri_resolver
from rlx.dist.metrics import Progress, TrainMetrics, TrainReport
from rlx.dist.microbatch import plan_microbatch
from rlx.dist.save import save_safetensors
from rlx.dist.serve import recv_train, serve_trainer_here, ship_train
from rlx.dist.sources import count_rows
from rlx.dist.spec import Adam, AdamW, DataRef, Optimizer, Sgd, TrainSpec, WeightRef
from rlx.dist.train import mean_reduce, run_train

__all__ = [
    "Adam",
    "AdamW",
    "DataRef",
    "EvaluationSpec",
    "Optimizer",
    "Progress",
    "Sgd",
    "TrainMetrics",
    "TrainReport",
    "TrainSpec",
    "WeightRef",
    "count_rows",
    "evaluate",
    "file_resolver",
    "mean_reduce",
    "params_digest",
    "plan_microbatch",
    "recv_train",
    "run_train",
    "save_safetensors",
    "serve_trainer_here",
    "ship_train",
    "uri_resolver",
]
