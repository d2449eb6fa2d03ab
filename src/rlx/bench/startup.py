"""What starting costs: fresh interpreters that import, in turns."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from rlx.bench.tables import Row, compared

STATEMENTS = {
    "import numpy": "import numpy",
    "import rlx": "import rlx",
    "import numpy, rlx, rlx.group": "import numpy, rlx, rlx.group",
    "everything that a rank uses": "import rlx.job.run",
}


def measure_startup(repeats: int = 9) -> list[Row]:
    """Seconds of a Python process that runs each statement; the ratio is to `import numpy`.

    A first round, which compiles, is not counted.
    """
    samples: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    with tempfile.TemporaryDirectory(prefix="rlx-bench-") as cache:
        # Compiled files of our own: the first import of a fresh checkout is not what counts.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(repeats + 1):
            for name, statement in STATEMENTS.items():
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
                if number:
                    samples[name].append(time.perf_counter() - begun)
    return compared(samples, "import numpy")
