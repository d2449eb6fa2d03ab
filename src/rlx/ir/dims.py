"""Dimensions: an int, a name, or a polynomial of names such as "batch*time" or "batch-1".

A dimension that is not an int is a string in one canonical form, so that two dimensions are equal
exactly if their values are equal for every binding of the names. Names are bound when a graph runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from rlx.errors import GraphError

Dim: TypeAlias = int | str
"""An int >= 0, or the canonical text of a polynomial with integer coefficients."""

_Monomial: TypeAlias = tuple[str, ...]
_Polynomial: TypeAlias = Mapping[_Monomial, int]

MAX_DIM_TEXT = 256
MAX_SIZE = 2**63 - 1
_MAX_TERMS = 1024  # of a product that is not yet collected; the text that results has far fewer
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TERM = re.compile(r"([+-]?)((?:[A-Za-z0-9_]+)(?:\*[A-Za-z0-9_]+)*)")


def canonical_dim(dim: object) -> Dim:
    """`dim` in its one canonical form. Raises `GraphError` where it is not a dimension."""
    if isinstance(dim, bool) or not isinstance(dim, int | str):
        raise GraphError(f"a dimension is an int or a name; got {dim!r}")
    if isinstance(dim, int):
        if dim < 0:
            raise GraphError(f"a dimension is not negative; got {dim}")
        if dim > MAX_SIZE:
            raise GraphError(f"a dimension is at most {MAX_SIZE}; got {dim}")
        return dim
    return _text(_parse(dim))


def names_of(dims: Iterable[Dim]) -> frozenset[str]:
    """The names that occur in `dims`."""
    return frozenset(
        name
        for dim in dims
        if isinstance(dim, str)
        for monomial in _parse(dim)
        for name in monomial
    )


def is_name(dim: Dim) -> bool:
    """Whether `dim` is one bare name, which an input can bind."""
    return isinstance(dim, str) and _NAME.fullmatch(dim) is not None


def add(left: Dim, right: Dim) -> Dim:
    """The sum of two dimensions; `right` may be a negative int."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    total = dict(_polynomial(left))
    for monomial, coefficient in _polynomial(right).items():
        total[monomial] = total.get(monomial, 0) + coefficient
    return _text(total)


def subtract(left: Dim, right: Dim) -> Dim:
    """The difference of two dimensions; one that is negative for every binding is an error."""
    difference = dict(_polynomial(left))
    for monomial, coefficient in _polynomial(right).items():
        difference[monomial] = difference.get(monomial, 0) - coefficient
    return _text(difference)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    result: _Polynomial = {(): 1}
    for dim in dims:
        result = _times(result, _polynomial(dim))
    return _text(result)


def divide(dividend: Dim, divisor: Dim) -> Dim | None:
    """The exact quotient by a divisor of one term, or None where there is none."""
    below = _polynomial(divisor)
    if len(below) != 1:
        return 1 if dividend == divisor and below else None
    ((monomial, coefficient),) = below.items()
    quotient: dict[_Monomial, int] = {}
    for above, count in _polynomial(dividend).items():
        rest = list(above)
        for name in monomial:
            if name not in rest:
                return None
            rest.remove(name)
        if count % coefficient:
            return None
        quotient[tuple(rest)] = count // coefficient
    return _text(quotient)


def evaluate(dim: Dim, bindings: Mapping[str, int]) -> int:
    """The value of `dim`. Raises `GraphError` for a name without a value or a negative result."""
    if isinstance(dim, int):
        return dim
    value = 0
    for monomial, coefficient in _parse(dim).items():
        term = coefficient
        for name in monomial:
            if name not in bindings:
                raise GraphError(f"dimension {dim!r}: no value is bound to the name {name!r}")
            term *= bindings[name]
        value += term
    if value < 0:
        bound = ", ".join(f"{name}={bindings[name]}" for name in sorted(names_of([dim])))
        raise GraphError(f"dimension {dim!r} is {value} with {bound}; it may not be negative")
    return value


def _polynomial(dim: Dim) -> _Polynomial:
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    return _parse(dim)


def _times(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    # Bounded before it is expanded: a few hundred bytes can ask for 53 ** 16 terms.
    if len(left) * len(right) > _MAX_TERMS:
        raise GraphError(f"a product of {len(left)} and {len(right)} terms is too complicated")
    result: dict[_Monomial, int] = {}
    for first, one in left.items():
        for second, other in right.items():
            key = tuple(sorted(first + second))
            result[key] = result.get(key, 0) + one * other
    return result


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Polynomial:
    if not text or len(text) > MAX_DIM_TEXT:
        raise GraphError(f"a dimension's text has 1 to {MAX_DIM_TEXT} characters; got {len(text)}")
    result: dict[_Monomial, int] = {}
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None or (position and not match.group(1)):
            raise GraphError(
                f"{text!r} is not a dimension: expected a name such as 'batch', or a sum of "
                f"products such as '2*batch*time-1'"
            )
        monomial, coefficient = _term(text, match.group(2))
        signed = -coefficient if match.group(1) == "-" else coefficient
        result[monomial] = result.get(monomial, 0) + signed
        position = match.end()
    return {monomial: count for monomial, count in result.items() if count}


def _term(text: str, term: str) -> tuple[_Monomial, int]:
    coefficient = 1
    names = []
    for factor in term.split("*"):
        if factor.isdecimal():
            coefficient *= int(factor)
        elif _NAME.fullmatch(factor):
            names.append(factor)
        else:
            raise GraphError(f"{text!r} is not a dimension: {factor!r} is no name and no number")
    return tuple(sorted(names)), coefficient


def _text(polynomial: _Polynomial) -> Dim:
    if any(abs(count) > MAX_SIZE for count in polynomial.values()):
        raise GraphError(f"a dimension has a number over {MAX_SIZE} in it")
    terms = sorted(
        ((monomial, count) for monomial, count in polynomial.items() if count),
        key=lambda term: (-len(term[0]), term[0]),
    )
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        if terms[0][1] < 0:
            raise GraphError(f"a dimension is not negative; got {terms[0][1]}")
        return terms[0][1]
    text = "".join(_term_text(monomial, count) for monomial, count in terms).removeprefix("+")
    if len(text) > MAX_DIM_TEXT:
        raise GraphError(f"a dimension became too complicated: {text[:60]}...")
    return text


def _term_text(monomial: _Monomial, count: int) -> str:
    sign = "-" if count < 0 else "+"
    size = abs(count)
    factors = ([] if size == 1 and monomial else [str(size)]) + list(monomial)
    return sign + "*".join(factors)
