"""The coordinator's model code: `model.py:loss` to a graph. No other rank runs this."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rlx.errors import ConfigError, RlxError
from rlx.ir import Graph


class ModelError(ConfigError):
    """The model's own code failed; the message has the line."""


def load_graph(reference: str, folder: Path) -> Graph:
    """The graph that `reference`, a file and a name such as 'model.py:loss', stands for.

    The name is a `Graph`, or a function without arguments that returns one. Relative files start
    from `folder`. Raises `ConfigError` where it does not exist, `ModelError` where its code fails.
    """
    file_name, separator, name = reference.rpartition(":")
    if not separator or not file_name or not name:
        raise ConfigError(
            f"a graph is a file and a name, such as 'model.py:loss'; got {reference!r}"
        )
    path = (folder / file_name).resolve()
    if not path.is_file():
        raise ConfigError(f"graph {reference!r}: there is no file {path}")
    with _explaining(path, reference):
        module = _executed(path)
    found = getattr(module, name, None)
    if found is None:
        names = [one for one in vars(module) if not one.startswith("_")]
        close = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"graph {reference!r}: {path} has no {name!r}{hint}")
    with _explaining(path, reference):
        graph = found() if callable(found) else found
    if not isinstance(graph, Graph):
        raise ConfigError(
            f"graph {reference!r}: expected a Graph or a function that returns one; "
            f"got {type(graph).__name__}"
        )
    if not graph.outputs:
        raise ConfigError(f"graph {reference!r} has no outputs: call set_outputs in {path}")
    return graph


def _executed(path: Path) -> ModuleType:
    """Run the file as a module of its own, with its folder on the path for what it imports."""
    spec = importlib.util.spec_from_file_location(f"rlx_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@contextmanager
def _explaining(path: Path, reference: str) -> Iterator[None]:
    """Say which line of the model failed: its author needs that, not our frames."""
    try:
        yield
    except Exception as error:  # a user's code may raise anything
        if isinstance(error, ConfigError):
            raise
        kind = "" if isinstance(error, RlxError) else f"{type(error).__name__}: "
        text = textwrap.indent(f"{kind}{error}", "  ")
        raise ModelError(f"graph {reference!r} failed at {_place(error, path)}\n{text}") from error


def _place(error: Exception, path: Path) -> str:
    """The last line of the model's file that the error passed through, as far as it did."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == path]
    return f"{path}:{own[-1].lineno}: {own[-1].line}" if own else str(path)
