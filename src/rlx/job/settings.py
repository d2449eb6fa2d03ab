"""Every setting of a job: its section, name, legal values, default and meaning, in one table.

The table drives reading, checking, environment names, error messages and the help text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REQUIRED = object()

TRANSPORTS = ("auto", "tcp", "mpi", "threads")
BACKENDS = ("numpy", "jax")
DEVICES = ("cpu", "gpu")
OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a job file."""

    check: Callable[[Any], bool]
    expected: str
    default: Any
    help: str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and value >= least


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(one) for one in value.values())


def _is_filled(value: Any) -> bool:
    return _is_texts(value) and bool(value)


def _is_rates(value: Any) -> bool:
    rates = value if isinstance(value, list) else [value]
    return bool(rates) and all(_is_number(one) and one >= 0 for one in rates)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < float("inf")


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(one) for one in value)


def _one_of(names: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: value in names


def _whole(least: int, default: Any, text: str) -> Setting:
    return Setting(_at_least(least), f"a whole number, at least {least}", default, text)


def _maybe_whole(least: int, text: str) -> Setting:
    return Setting(_optional(_at_least(least)), f"a whole number, at least {least}", None, text)


def _flag(text: str, *, default: bool = False) -> Setting:
    return Setting(_is_flag, "true or false", default, text)


def _seconds(default: float, text: str) -> Setting:
    return Setting(_is_positive, "a number of seconds above 0", default, text)


_GRAPH = "a Python file and a name in it, such as 'model.py:loss'"
_PATHS = "a table of input = 'file', 'file.npy' or 'file.safetensors#tensor'"

SECTIONS: dict[str, dict[str, Setting]] = {
    "job": {
        "graph": Setting(_is_text, _GRAPH, REQUIRED, "the loss, read by the coordinator alone"),
        "data": Setting(_is_filled, _PATHS, REQUIRED, "the rows of each input"),
        "epochs": _whole(1, REQUIRED, "how many times every row is used"),
        "batch": _whole(1, REQUIRED, "rows in a microbatch"),
        "global_batch": _maybe_whole(1, "rows in a step; batch if not given"),
        "shuffle_seed": _maybe_whole(0, "seed of the order of rows; in order if not given"),
        "lanes": _whole(1, 1, "threads that share a rank's microbatches; the bits stay"),
        "init_seed": _whole(0, 0, "seed of the first values of parameters without a file"),
        "dropout_seed": _whole(0, 0, "seed of what dropout drops"),
        "weight_output": _maybe_whole(1, "the graph's output that weighs a microbatch, from 0"),
        "backend": Setting(
            _one_of(BACKENDS),
            "one of " + ", ".join(BACKENDS),
            "numpy",
            "what computes a microbatch",
        ),
        "device": Setting(
            _one_of(DEVICES),
            "one of " + ", ".join(DEVICES),
            "cpu",
            "what it computes on; gpu is for jax",
        ),
        "strict": _flag("ranks whose libraries or CPUs may round differently refuse to start"),
        "push_data": _flag("the coordinator sends rows and first parameters to the others"),
    },
    "params": {},
    "optimizer": {
        "kind": Setting(
            _one_of(OPTIMIZERS), "one of " + ", ".join(OPTIMIZERS), "sgd", ", ".join(OPTIMIZERS)
        ),
        "lr": Setting(
            _is_rates, "a number from 0, or a list of one for each epoch", REQUIRED, "learning rate"
        ),
        "momentum": Setting(_is_share, "a number from 0 to below 1", 0.0, "for sgd"),
        "beta1": Setting(_is_share, "a number from 0 to below 1", 0.9, "for adam and adamw"),
        "beta2": Setting(_is_share, "a number from 0 to below 1", 0.999, "for adam and adamw"),
        "epsilon": Setting(_is_positive, "a number above 0", 1e-8, "for adam and adamw"),
        "weight_decay": Setting(
            lambda value: _is_number(value) and value >= 0, "a number >= 0", 0.01, "for adamw"
        ),
    },
    "net": {
        "transport": Setting(
            _one_of(TRANSPORTS), "one of " + ", ".join(TRANSPORTS), "auto", ", ".join(TRANSPORTS)
        ),
        "coordinator": Setting(
            _is_text, "host:port", "127.0.0.1:0", "where rank 0 listens while ranks join"
        ),
        "deadline_s": _seconds(300.0, "how long a call may wait for ranks that live"),
        "heartbeat_s": _seconds(10.0, "how long a silent rank is believed to live"),
        "shared_memory": _flag("ranks of one host share memory; the bits stay", default=True),
    },
    "evaluation": {
        "graph": Setting(_is_text, _GRAPH, REQUIRED, "the figures, from the trained parameters"),
        "data": Setting(_is_filled, _PATHS, REQUIRED, "the rows of each input"),
        "figures": Setting(_is_names, "a list of names", REQUIRED, "a name for each output"),
        "batch": _whole(1, 256, "rows in a microbatch"),
    },
}

OPTIONAL_SECTIONS = frozenset({"evaluation"})
"""Sections that a job may leave out whole."""

FREE_SECTIONS = frozenset({"params"})
"""Sections whose keys are the user's own names, with text as values."""
