"""What the sources must not hold: anything that runs code from bytes, and anything that drifts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile"}
# What mpi4py's lower-case calls do is pickle. `free` and `py2f` and their like do not.
PICKLING_MPI_CALLS = {
    *("send", "bsend", "ssend", "isend", "ibsend", "issend", "recv", "irecv", "sendrecv"),
    *("mprobe", "improbe", "bcast", "gather", "scatter", "allgather", "alltoall"),
    *("reduce", "allreduce", "scan", "exscan"),
}


def faults_of(source: str, *, is_mpi: bool = False) -> list[str]:
    """Each place in `source` that unpickles, evaluates, or calls MPI with objects."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if FORBIDDEN_MODULES & {name.partition(".")[0] for name in names}:
            found.append(f"line {node.lineno}: imports {names}")
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in FORBIDDEN_CALLS:
            found.append(f"line {node.lineno}: calls {called}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append(f"line {node.value.lineno}: allow_pickle")
        if is_mpi and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in PICKLING_MPI_CALLS and "comm" in owner.lower():
                found.append(f"line {node.lineno}: {owner}.{node.func.attr} pickles")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_source_unpickles_or_evaluates(path):
    source = path.read_text()
    assert faults_of(source, is_mpi=path.name.startswith("mpi")) == []
    assert "multiprocessing" not in source


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "np.load(path, allow_pickle=True)",
        "self._comm.send(1, 0)",
        "comm.bcast(x)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert faults_of(source, is_mpi=True)


def test_the_modules_that_load_with_a_job_do_not_load_pickle_for_its_data():
    """numpy itself imports pickle; our code must not call it. `np.load` is what would."""
    for path in SOURCES:
        assert not re.search(r"\bnp\.(load|save|savez)\(|numpy\.(load|save)\(", path.read_text())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_file_holds_one_idea(path):
    assert len(path.read_text().splitlines()) <= 400


def test_every_room_says_what_it_is_for():
    for room in sorted((ROOT / "src" / "rlx").iterdir()):
        if (room / "__init__.py").exists():
            docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
            assert docstring, room
            assert len(docstring) > 60, room
