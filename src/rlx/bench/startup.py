"""What starting costs: fresh interpreters that import, in turns."""

from __future__ import annotations

import subprocess
import sys
import time

from rlx.bench.tables import Row, compared

STATEMENTS = {
    "import numpy": "import numpy",
    "import rlx": "import rlx",
    "import numpy, rlx, rlx.group": "import numpy, rlx, rlx.group",
    "everything that a rank uses": "import rlx.job.run",
}


def measure_startup(repeats: int = 9) -> list[Row]:
    """Seconds of a Python process that runs each statement; the ratio is to `import numpy`."""
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(repeats):
        for name, statement in STATEMENTS.items():
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            samples[name].append(time.perf_counter() - begun)
    return compared(samples, "import numpy")
