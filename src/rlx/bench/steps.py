"""What a step of training costs on one rank, beside the same model in PyTorch, in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from rlx.backends import Session
from rlx.bench.models import MODELS, Model, gpt_like
from rlx.bench.tables import Row
from rlx.dist.flat import layout_of
from rlx.dist.optimizers import SgdStep

LR = 0.01
_TURN_S = 0.02
_CHECKED_STEPS = 3


@dataclass(frozen=True)
class Case:
    """A model to measure, at so many rows a step, and how its rows of the table are called."""

    letter: str
    model: Model
    batch: int
    shown: str


@dataclass(frozen=True)
class Steps:
    """Rows of the table, and what was said beside it."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def cases(letters: Sequence[str], batches: Sequence[int], layers: Sequence[int]) -> list[Case]:
    """Each model at each batch, or at its own where none is given; D at each number of layers."""
    found = []
    for letter in letters:
        models = [gpt_like(count) for count in layers] if letter == "D" else []
        for model in models or [MODELS[letter]]:
            for batch in batches or [model.batch]:
                own = batch == model.batch
                shown = model.about if own else f"{model.about.split(', batch')[0]}, batch {batch}"
                found.append(Case(letter, model, batch, f"{letter}: {shown}"))
    return found


def rlx_step(
    model: Model, params: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]
) -> Callable[[], float]:
    """A step of SGD with momentum 0.9 on a copy of `params`; it returns the loss before it."""
    graph, names = model.graph()
    layout = layout_of(params, names)
    flat, gradient = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32)
    layout.fill(flat, params)
    # The first output is the loss, and after it come the gradients, in the order of the names.
    outputs = dict(enumerate(layout.views(gradient).values(), start=1))
    executable = Session("cpu").compile(graph, params=layout.views(flat), outputs=outputs)
    bound = executable.bind({"batch": len(next(iter(inputs.values())))})
    for name, array in inputs.items():
        bound.inputs[name][...] = array
    bound.inputs["d_output"][...] = 1
    optimizer = SgdStep(flat, 0.9)

    def step() -> float:
        bound.step()
        loss = float(bound.outputs[0])
        optimizer.step(flat, gradient, LR)
        return loss

    return step


def measure_steps(cases: Sequence[Case], *, seconds: float) -> Steps:
    """Time the cases, each for about `seconds`; beside PyTorch where it is installed.

    Both sides take turns of about 20 ms. The ratio is the median of the turns' ratios. The first
    losses of both are compared, and a model in which they differ is an error.
    """
    has_torch = find_spec("torch") is not None
    rows, notes = [], []
    for case in cases:
        rng = np.random.default_rng(1)
        params, inputs = case.model.params(rng), case.model.inputs(rng, case.batch)
        contenders = {"rlx": rlx_step(case.model, params, inputs)}
        if has_torch:
            from rlx.bench.torch_models import torch_step

            contenders["torch"] = torch_step(case.letter, params, inputs, LR)
        _compare(case.letter, contenders)
        turns = _turns(contenders, seconds)
        for name, samples in turns.items():
            ratio = None
            if name == "rlx" and has_torch:
                pairs = zip(samples, turns["torch"], strict=True)
                ratio = statistics.median(own / other for own, other in pairs)
            rows.append(
                Row(f"{case.shown}, {name}", tuple(samples), "torch" if ratio else None, ratio)
            )
    if has_torch:
        from rlx.bench.torch_models import torch_version

        notes.append(f"torch {torch_version()}, eager, one thread")
    else:
        notes.append("torch is not installed: there is nothing to compare with")
    notes.append(
        "forward and backward pass and SGD with momentum 0.9, float32, one BLAS thread; turns of "
        "about 20 ms, no garbage collection while timing"
    )
    return Steps(tuple(rows), tuple(notes))


def _compare(letter: str, contenders: Mapping[str, Callable[[], float]]) -> None:
    """The first steps of all contenders, which also warm them up."""
    losses = {name: [step() for _ in range(_CHECKED_STEPS)] for name, step in contenders.items()}
    first = losses["rlx"]
    for name, found in losses.items():
        if not np.allclose(found, first, rtol=1e-3, atol=1e-5):
            raise ArithmeticError(
                f"model {letter} is not the same model: {name} {found}, rlx {first}"
            )


def _turns(contenders: Mapping[str, Callable[[], float]], seconds: float) -> dict[str, list[float]]:
    """Seconds a step, one number for each turn of each contender."""
    counts = {}
    for name, step in contenders.items():
        begun = time.perf_counter()
        step()
        counts[name] = max(1, int(_TURN_S / max(time.perf_counter() - begun, 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(samples["rlx"]) < 3:
            for name, step in contenders.items():
                begun = time.perf_counter()
                for _ in range(counts[name]):
                    step()
                samples[name].append((time.perf_counter() - begun) / counts[name])
    finally:
        gc.enable()
    return samples
