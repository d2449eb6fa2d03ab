"""One digest for a set of parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np


def params_digest(params: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over names, dtypes, shapes and little-endian values, in the mapping's order.

    Equal exactly where the parameters are equal to the last bit, on any machine.
    """
    digest = hashlib.sha256()
    for name, array in params.items():
        head = f"{name}\n{array.dtype.name}\n{','.join(str(size) for size in array.shape)}\n"
        digest.update(len(head.encode()).to_bytes(8, "little"))
        digest.update(head.encode())
        digest.update(_little_endian(array))
    return digest.hexdigest()


def _little_endian(array: np.ndarray) -> bytes:
    if array.dtype.kind == "V":  # bfloat16 and its like: the bytes are the machine's own
        return np.ascontiguousarray(array).view(np.uint16).astype("<u2").tobytes()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
