"""A process that trains one of the models for some steps, and says what that took."""

from __future__ import annotations

import json
import resource
import sys
import time

_STEPS = 20


def main(letter: str, library: str, begun: float) -> None:
    """Load, train, and print one JSON line. `begun` is the monotonic clock at the start."""
    import numpy as np

    from rlx.bench.models import MODELS
    from rlx.bench.steps import LR, rlx_step

    if library == "torch":
        from rlx.bench.torch_models import torch_step
    loaded_bytes = _peak_bytes()
    model, rng = MODELS[letter], np.random.default_rng(1)
    params, inputs = model.params(rng), model.inputs(rng, model.batch)
    if library == "torch":
        step = torch_step(letter, params, inputs, LR)
    else:
        step = rlx_step(model, params, inputs)
    step()
    first_step_s = time.monotonic() - begun
    for _ in range(_STEPS):
        step()
    said = {
        "first_step_s": first_step_s,
        "loaded_bytes": loaded_bytes,
        "peak_bytes": _peak_bytes(),
    }
    print(json.dumps(said))


def _peak_bytes() -> int:
    """The most memory that this process has held so far. Linux counts it in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
