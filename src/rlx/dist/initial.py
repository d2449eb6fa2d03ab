"""First parameter values made from a formula: `init:KIND?key=value&...`.

The values are a function of (seed, parameter name, shape, dtype) alone. Randomness is the raw
stream of numpy's Philox, whose values numpy guarantees for all releases, and only exact steps
follow it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from urllib.parse import parse_qsl

import numpy as np

from rlx.errors import UsageError

SCHEME = "init:"
_KINDS: dict[str, frozenset[str]] = {
    "zeros": frozenset(),
    "ones": frozenset(),
    "constant": frozenset({"value"}),
    "uniform": frozenset({"low", "high", "seed"}),
    "glorot_uniform": frozenset({"seed"}),
    "he_uniform": frozenset({"seed"}),
}


def initial_value(
    uri: str, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> np.ndarray:
    """The first value of parameter `name`. Raises `UsageError` for a formula that does not exist.

    glorot_uniform: uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
    he_uniform: uniform in +-sqrt(6 / fan_in) (He et al., 2015). Fan-out is the last dimension,
    fan-in the product of the others.
    """
    kind, settings = _parsed(uri, name)
    if kind in ("zeros", "ones", "constant"):
        value = {"zeros": 0.0, "ones": 1.0}.get(kind, settings.get("value", 0.0))
        low = high = value
    else:
        low, high = _bounds(kind, settings, shape)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.array([low, high, high - low]).astype(dtype)).all():
            raise UsageError(f"parameter {name!r}: {uri!r} has values that {dtype} cannot hold")
    if kind in ("zeros", "ones", "constant"):
        return np.full(shape, low, dtype)
    unit = _uniform(int(settings.get("seed", 0)), name, math.prod(shape))
    return (low + (high - low) * unit).astype(dtype).reshape(shape)


def _parsed(uri: str, name: str) -> tuple[str, Mapping[str, float]]:
    kind, _, query = uri.removeprefix(SCHEME).partition("?")
    if kind not in _KINDS:
        raise UsageError(
            f"parameter {name!r}: there is no initial value {kind!r}; known: {', '.join(_KINDS)}"
        )
    settings: dict[str, float] = {}
    for key, text in parse_qsl(query, keep_blank_values=True, max_num_fields=8):
        if key not in _KINDS[kind] or key in settings:
            allowed = ", ".join(sorted(_KINDS[kind])) or "nothing"
            raise UsageError(f"parameter {name!r}: {uri!r}: {kind} takes {allowed}; got {key!r}")
        settings[key] = _setting(uri, name, key, text)
    return kind, settings


def _setting(uri: str, name: str, key: str, text: str) -> float:
    try:
        value = int(text) if key == "seed" else float(text)
    except ValueError:
        raise UsageError(f"parameter {name!r}: {uri!r}: {key}={text!r} is no number") from None
    if not math.isfinite(value) or (key == "seed" and not 0 <= value < 2**64):
        raise UsageError(f"parameter {name!r}: {uri!r}: {key}={text!r} is out of range")
    return value


def _bounds(
    kind: str, settings: Mapping[str, float], shape: tuple[int, ...]
) -> tuple[float, float]:
    if kind == "uniform":
        return settings.get("low", -0.1), settings.get("high", 0.1)
    fan_out = shape[-1] if shape else 1
    fan_in = math.prod(shape[:-1]) if shape else 1
    fans = max(1, fan_in + (fan_out if kind == "glorot_uniform" else 0))
    limit = math.sqrt(6.0 / fans)
    return -limit, limit


def _uniform(seed: int, name: str, count: int) -> np.ndarray:
    """`count` float64 values in [0, 1), from the upper 53 bits of each raw word."""
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    raw = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
    return (np.asarray(raw, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
