"""The bits of a step depend on the graph and on the microbatch's shape: not on where memory lies,
what else the process has planned, which thread runs it, or how the interpreter hashes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rlx.backends import Session
from rlx.bench.models import MODELS
from rlx.dist.flat import layout_of
from support import clean_environment

ROWS = {"A": 4, "B": 37, "C": 3, "D": 2}
"""Of a microbatch of each model: enough for all of its kernels' ways, and quick."""


def data_of(letter, rows=None):
    model = MODELS[letter]
    rng = np.random.default_rng(5)
    params = model.params(rng)
    return params, model.inputs(rng, ROWS[letter] if rows is None else rows)


def shifted(array, elements):
    """A copy that begins so many elements after an address that is a multiple of 64 bytes."""
    memory = np.zeros(array.nbytes + (elements + 1) * array.itemsize + 64, np.uint8)
    first = -memory.ctypes.data % 64 + elements * array.itemsize
    view = memory[first : first + array.nbytes].view(array.dtype)
    assert view.ctypes.data % 64 == elements * array.itemsize % 64
    np.copyto(view, array.reshape(-1))
    return view


def executable_of(letter, params, shift=0):
    """With parameters and gradients in flat vectors of the caller, as a training run has them."""
    graph, names = MODELS[letter].graph()
    layout = layout_of(params, names)
    flat = np.zeros(layout.size, np.float32)
    layout.fill(flat, params)
    views = layout.views(shifted(flat, shift))
    gradients = layout.views(shifted(np.zeros_like(flat), (5 * shift + 3) % 16))
    outputs = dict(enumerate(gradients.values(), start=1))
    return Session().compile(graph, params=views, outputs=outputs)


def bits(executable, inputs):
    """The digest of the loss and all gradients of one step."""
    outputs = executable.run({**inputs, "d_output": np.float32(1)})
    return hashlib.sha256(b"".join(one.tobytes() for one in outputs)).hexdigest()


@pytest.mark.parametrize("letter", ROWS)
def test_bits_do_not_depend_on_where_the_callers_memory_lies(letter):
    params, inputs = data_of(letter)
    found = {bits(executable_of(letter, params, shift), inputs) for shift in range(16)}
    assert len(found) == 1


@pytest.mark.parametrize("letter", ROWS)
def test_bits_do_not_depend_on_what_else_the_process_has_planned(letter):
    params, inputs = data_of(letter)
    expected = bits(executable_of(letter, params), inputs)
    alive = []
    for count in range(4):
        executable = executable_of(letter, params)
        for rows in range(1, 1 + 3 * count):
            alive.append((np.ones(1000 + 13 * rows, np.uint8), executable.bind({"batch": rows})))
        assert bits(executable, inputs) == expected
        alive.append((executable, None))


@pytest.mark.parametrize("letter", ROWS)
def test_bits_do_not_depend_on_the_thread_or_on_others_that_run(letter):
    params, inputs = data_of(letter)
    expected = bits(executable_of(letter, params), inputs)

    def lane(number):
        executable = executable_of(letter, params, number)
        return {bits(executable, inputs) for _ in range(5)}

    with ThreadPoolExecutor(3) as lanes:
        assert set().union(*lanes.map(lane, range(3))) == {expected}


PRINTED = """
from test_backends_bits import ROWS, bits, data_of, executable_of
for letter in ROWS:
    params, inputs = data_of(letter)
    print(letter, bits(executable_of(letter, params), inputs))
"""


def test_bits_do_not_depend_on_the_process_and_its_hashes():
    path = os.pathsep.join(sys.path)  # where this process found the tests' modules
    printed = set()
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PRINTED],
            env=clean_environment(PYTHONPATH=path, PYTHONHASHSEED=seed, OPENBLAS_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == len(ROWS)


@pytest.mark.parametrize("letter", ["B", "C", "D"])
def test_another_shape_of_the_microbatch_gives_other_bits(letter):
    """The counter-test: these digests can differ, and do where the rows are cut otherwise."""
    params, inputs = data_of(letter, 8)
    executable = executable_of(letter, params)
    whole = executable.run({**inputs, "d_output": np.float32(1)})
    whole = [one.copy() for one in whole]
    halves = [np.zeros_like(one) for one in whole]
    for rows in (slice(0, 4), slice(4, 8)):
        part = {name: array[rows] for name, array in inputs.items()}
        for total, one in zip(
            halves, executable.run({**part, "d_output": np.float32(1)}), strict=True
        ):
            total += one / 2
    for one, two in zip(whole, halves, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)
    assert any(one.tobytes() != two.tobytes() for one, two in zip(whole, halves, strict=True))
