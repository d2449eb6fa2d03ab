"""What a target of the fuzzer is: one decoder of bytes that come from another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlx.errors import RlxError, WireError
from rlx.testing.fuzz.mutate import Mutation, mutate_bytes


@dataclass(frozen=True)
class Target:
    """One decoder, its valid inputs, and a way to mutate them.

    `run` gives a word for what became of an input, such as "accepted", or raises one of `refusals`.
    Whatever else comes out is a finding, and so is an invariant that does not hold (`hold`).
    """

    name: str
    run: Callable[[bytes], str]
    seeds: Callable[[], Sequence[bytes]]
    refusals: tuple[type[RlxError], ...] = (WireError,)
    mutate: Mutation = mutate_bytes


def hold(fact: object, what: str) -> None:
    """An invariant of a decoder. Not an assert statement, which python -O leaves out."""
    if not fact:
        raise AssertionError(what)
