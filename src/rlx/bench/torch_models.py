"""The models of `models` in PyTorch, eager, on one thread: the same values go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from rlx.bench.models import HEADS, LENGTH, WIDTH

Tensors = Mapping[str, Any]


def torch_step(
    letter: str, params: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], lr: float
) -> Callable[[], float]:
    """A step of SGD with momentum 0.9 on copies of `params`; it returns the loss before it."""
    torch.set_num_threads(1)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    given = {name: torch.tensor(value) for name, value in inputs.items()}
    if letter == "C":
        given["x"] = given["x"].permute(0, 3, 1, 2).contiguous()
    optimizer = torch.optim.SGD(list(tensors.values()), lr=lr, momentum=0.9)
    loss_of = _LOSSES[letter]

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tensors, given)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def torch_version() -> str:
    """As PyTorch says it."""
    return str(torch.__version__)


def _linear(params: Tensors, name: str, x: Any) -> Any:
    return x @ params[name] + params[f"{name}.bias"]


def _regression(params: Tensors, given: Tensors) -> Any:
    return functional.mse_loss(given["x"] @ params["w"], given["y"])


def _mlp(params: Tensors, given: Tensors) -> Any:
    x = functional.relu(_linear(params, "w0", given["x"]))
    x = functional.relu(_linear(params, "w1", x))
    return functional.cross_entropy(_linear(params, "w2", x), given["labels"])


def _cnn(params: Tensors, given: Tensors) -> Any:
    x = given["x"]
    for number in range(2):
        kernel = params[f"k{number}"].permute(3, 2, 0, 1)
        x = functional.relu(functional.conv2d(x, kernel, params[f"k{number}.bias"]))
        x = functional.max_pool2d(x, 2)
    # The head's rows are in the order of channels-last images.
    flat = x.permute(0, 2, 3, 1).flatten(1)
    return functional.cross_entropy(_linear(params, "head", flat), given["labels"])


def _gpt(params: Tensors, given: Tensors) -> Any:
    x = functional.embedding(given["tokens"], params["table"]) + params["places"]
    for number in range(sum(name.endswith(".up") for name in params)):
        x = x + _attention(params, f"block{number}.attention", _norm(params, f"block{number}.1", x))
        inner = _linear(params, f"block{number}.up", _norm(params, f"block{number}.2", x))
        inner = functional.gelu(inner, approximate="tanh")
        x = x + _linear(params, f"block{number}.down", inner)
    logits = _norm(params, "last", x) @ params["table"].T
    return functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())


def _norm(params: Tensors, name: str, x: Any) -> Any:
    return functional.layer_norm(x, (WIDTH,), params[f"{name}.gain"], params[f"{name}.bias"])


def _attention(params: Tensors, name: str, x: Any) -> Any:
    whole = _linear(params, f"{name}.in", x)
    parts = whole.view(len(x), LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
    return _linear(params, f"{name}.out", mixed.transpose(1, 2).reshape(len(x), LENGTH, WIDTH))


_LOSSES: dict[str, Callable[[Tensors, Tensors], Any]] = {
    "A": _regression,
    "B": _mlp,
    "C": _cnn,
    "D": _gpt,
}
