"""Checks of the fields of records, for what is built by hand and what comes off the wire alike."""

from __future__ import annotations

import math
from typing import Any

from rlx.errors import UsageError


def check(holds: bool, expectation: str) -> None:
    """Raise `UsageError(expectation)` unless `holds`."""
    if not holds:
        raise UsageError(expectation)


def check_int(what: str, value: Any, *, least: int = 0, most: int = 2**63 - 1) -> None:
    """An int, and no bool, within the bounds."""
    good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    check(good, f"{what} is an int from {least} to {most}; got {value!r}")


def check_text(what: str, value: Any) -> None:
    """Printable text that is not empty."""
    good = isinstance(value, str) and 0 < len(value) <= 4096 and value.isprintable()
    check(good, f"{what} is 1 to 4096 printable characters; got {value!r}")


def number(what: str, value: Any) -> float:
    """A finite number >= 0, as a float."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    check(plain, f"{what} is a number; got {value!r}")
    check(math.isfinite(value) and value >= 0, f"{what} is finite and >= 0; got {value!r}")
    return float(value)


def all_of(what: str, values: Any, kind: type) -> tuple[Any, ...]:
    """A list of at least one `kind`, as a tuple."""
    good = isinstance(values, list | tuple) and all(isinstance(one, kind) for one in values)
    check(good and bool(values), f"{what} is a list of at least one {kind.__name__}")
    return tuple(values)
