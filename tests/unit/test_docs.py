"""Code in the README and the docs runs; links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CHANGELOG.md"]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text()), 1)
]


@pytest.mark.parametrize("block", CODE)
def test_a_python_block_runs(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_there_is_code_to_run():
    assert len(CODE) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_example_in_python_ends_with_one_digest_on_both_ranks():
    script = ROOT / "examples" / "linear_regression" / "train.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = re.findall(r"rank \d ([0-9a-f]{64})", done.stdout)
    assert first == second


def test_the_digits_are_what_their_script_makes(tmp_path):
    folder = ROOT / "examples" / "digits"
    target = tmp_path / "digits.safetensors"
    done = subprocess.run(
        [sys.executable, folder / "prepare.py", target], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == (folder / "digits.safetensors").read_bytes()
