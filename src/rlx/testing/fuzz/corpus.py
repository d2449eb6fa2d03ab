"""The corpus: for each decoder, one small input for each way in which it has been seen to answer.

A file a decoder, `<decoder>.txt`. A line is an outcome and the input that has it, in hexadecimal;
what begins with # is a comment. It is text so that a change of it can be read in a diff.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlx.errors import UsageError

LIMIT_BYTES: Final = 4096
"""What is longer is not kept: a corpus is read and run by every test."""
LIMIT_INPUTS: Final = 64
"""How many a decoder keeps at most, the shortest first."""
_HEAD: Final = "# Inputs of {target}, each with its outcome. Made anew by\n#   {command}\n"
_COMMAND: Final = "scripts/fuzz --distil --inputs 1000000"


@dataclass(frozen=True)
class Kept:
    """An input, and the word for what becomes of it: "accepted", or an error's name."""

    outcome: str
    data: bytes


class Distillate:
    """Of many inputs, the shortest for each outcome and place; of equally long ones the lowest."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Hashable], bytes] = {}

    def add(self, outcome: str, place: Hashable, data: bytes) -> None:
        """Consider an input that had this outcome, decided at this place of the decoder."""
        key = outcome, place
        best = self._found.get(key)
        if len(data) <= LIMIT_BYTES and (best is None or _length_first(data) < _length_first(best)):
            self._found[key] = data

    def kept(self) -> list[Kept]:
        """What is worth keeping, by outcome and then by length."""
        found = {Kept(outcome, data) for (outcome, _), data in self._found.items()}
        shortest = sorted(found, key=lambda one: _length_first(one.data))[:LIMIT_INPUTS]
        return sorted(shortest, key=lambda one: (one.outcome, *_length_first(one.data)))


def read_corpus(folder: Path, target: str) -> list[Kept]:
    """The kept inputs of one decoder, in the order of its file.

    Raises `UsageError`, with file and line, for a missing or an empty file and for a line that is
    not an outcome and an input.
    """
    path = _path(folder, target)
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the corpus of {target} cannot be read: {path}: {error}") from error
    kept = [
        _parsed(line, f"{path}:{number}")
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]
    if not kept:
        raise UsageError(f"{path} holds no input; make it anew by {_COMMAND}")
    return kept


def write_corpus(folder: Path, target: str, kept: Sequence[Kept]) -> None:
    """Write the file of one decoder, in place of the one that was there."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{one.outcome} {one.data.hex() or '-'}\n" for one in kept]
    head = _HEAD.format(target=target, command=_COMMAND)
    _path(folder, target).write_text(head + "".join(lines), "ascii")


def _path(folder: Path, target: str) -> Path:
    return folder / f"{target}.txt"


def _parsed(line: str, where: str) -> Kept:
    outcome, _, text = line.partition(" ")
    if not re.fullmatch(r"-|([0-9a-f]{2})+", text):
        raise UsageError(f"{where}: a line is an outcome and an input in hexadecimal, - for none")
    return Kept(outcome, b"" if text == "-" else bytes.fromhex(text))


def _length_first(data: bytes) -> tuple[int, bytes]:
    return len(data), data
