"""Write text.safetensors: the docstrings of some modules of the Python that runs this, as tokens.

Run it as `python examples/char_gpt/prepare.py`; Python 3.11.7 makes the file that lies beside it.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from model import ALPHABET, LENGTH

from rlx.dist import save_safetensors

HERE = Path(__file__).resolve().parent
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

TRAIN = """
    argparse asyncio.streams asyncio.tasks bisect calendar cmd collections configparser copy csv
    dataclasses difflib enum gettext glob graphlib heapq http.client inspect json.decoder
    json.encoder operator pdb pickle pprint queue sched selectors shelve smtplib statistics
    threading traceback types urllib.request weakref
"""
HELD_OUT = "contextlib fractions random"
"""Modules whose sources carry no notice but Python's own."""


def main(target: Path) -> None:
    """Rows of LENGTH + 1 tokens: each begins with the last of the row before."""
    save_safetensors(
        target,
        {"train": rows(TRAIN.split()), "held_out": rows(HELD_OUT.split())},
        {
            "source": f"docstrings of Python {platform.python_version()}'s standard library",
            "copyright": "Copyright (c) 2001-2023 Python Software Foundation; All Rights Reserved",
            "license": "PSF-2.0",
        },
    )


def rows(modules: Sequence[str]) -> np.ndarray:
    """The docstrings of `modules`, joined, as U8 [rows, LENGTH + 1]; the last few are left out."""
    text = "\n\n".join(found for name in modules for found in docstrings(name))
    tokens = np.array([ALPHABET.index(one) for one in text if one in ALPHABET], np.uint8)
    starts = np.arange((len(tokens) - 1) // LENGTH) * LENGTH
    return tokens[starts[:, None] + np.arange(LENGTH + 1)]


def docstrings(module: str) -> Iterator[str]:
    """Those of a module, its classes and functions, outer ones first, without indentation."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text("utf-8"))):
        if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node, clean=False)):
            yield inspect.cleandoc(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "text.safetensors")
