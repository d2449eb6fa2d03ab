"""Write digits.safetensors from digits.csv.gz: every fifth row is for the test, the rest to train
on.

Run it as `python examples/digits/prepare.py`; the result is the file that lies beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rlx.dist import save_safetensors

HERE = Path(__file__).resolve().parent


def main(target: Path) -> None:
    """Read the 1,797 rows of 64 pixels and a label, split them, and save four tensors."""
    table = np.loadtxt(HERE / "digits.csv.gz", delimiter=",", dtype=np.int32)
    images, labels = table[:, :64].astype(np.uint8), table[:, 64]
    is_test = np.arange(len(table)) % 5 == 4
    save_safetensors(
        target,
        {
            "train_images": images[~is_test],
            "train_labels": labels[~is_test],
            "test_images": images[is_test],
            "test_labels": labels[is_test],
        },
        {
            "source": "Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, 1998, "
            "UCI Machine Learning Repository, doi.org/10.24432/C50P49",
            "license": "CC BY 4.0",
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "digits.safetensors")
