"""Dimensions: one text for one polynomial, and exact arithmetic on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import GraphError
from rlx.ir import Shape, evaluate
from rlx.ir.dims import add, canonical_dim, divide, is_name, names_of, product

NAMES = ["a", "b", "batch"]
TERMS = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.sampled_from(NAMES), max_size=2)),
    min_size=1,
    max_size=4,
)
BINDINGS = st.fixed_dictionaries({name: st.integers(0, 50) for name in NAMES})
# Two polynomials of degree 4 at most that agree on all of these are one and the same.
GRID = [{"a": i, "b": j, "batch": k} for i in range(5) for j in range(5) for k in range(5)]


def text(terms):
    return "+".join("*".join([str(count), *names]) for count, names in terms)


def value(terms, bindings):
    total = 0
    for count, names in terms:
        for name in names:
            count *= bindings[name]
        total += count
    return total


@given(TERMS, BINDINGS)
def test_a_dimension_has_the_value_of_its_text(terms, bindings):
    assert evaluate(canonical_dim(text(terms)), bindings) == value(terms, bindings)


@given(TERMS, TERMS)
def test_two_dimensions_are_equal_exactly_if_their_values_are(one, other):
    same = all(value(one, bindings) == value(other, bindings) for bindings in GRID)
    assert (canonical_dim(text(one)) == canonical_dim(text(other))) == same


@given(TERMS, st.randoms())
def test_the_order_of_terms_and_factors_does_not_matter(terms, random):
    mixed = [(count, random.sample(names, len(names))) for count, names in terms]
    random.shuffle(mixed)
    assert canonical_dim(text(mixed)) == canonical_dim(text(terms))
    assert canonical_dim(canonical_dim(text(terms))) == canonical_dim(text(terms))


@given(TERMS, TERMS, BINDINGS)
def test_sums_and_products_are_those_of_the_values(one, other, bindings):
    left, right = canonical_dim(text(one)), canonical_dim(text(other))
    assert evaluate(add(left, right), bindings) == value(one, bindings) + value(other, bindings)
    assert evaluate(product([left, right]), bindings) == value(one, bindings) * value(
        other, bindings
    )


@given(TERMS, st.integers(1, 5), st.lists(st.sampled_from(NAMES), max_size=2))
def test_a_product_divides_by_its_factor(terms, count, names):
    dim, divisor = canonical_dim(text(terms)), canonical_dim(text([(count, names)]))
    assert divide(product([dim, divisor]), divisor) == dim


def test_a_division_with_a_rest_has_no_result():
    assert divide("a+1", "a") is None
    assert divide("3*a", 2) is None
    assert divide(7, 2) is None
    assert divide("a+b", "a+b") == 1


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a", "a"),
        ("b*a", "a*b"),
        ("a+a", "2*a"),
        ("a-a", 0),
        ("a-a+3", 3),
        ("-1+a", "a-1"),
        ("4", 4),
    ],
)
def test_the_canonical_text(written, canonical):
    assert canonical_dim(written) == canonical


@pytest.mark.parametrize(
    "wrong", [-1, True, 1.5, None, "", "a b", "a+", "a**b", "2a", "a/b", "é", "-3"]
)
def test_what_is_no_dimension_is_refused(wrong):
    with pytest.raises(GraphError):
        canonical_dim(wrong)


def test_a_text_without_end_is_refused():
    with pytest.raises(GraphError, match="256 characters"):
        canonical_dim("a+" * 200 + "a")


def test_a_name_without_a_value_and_a_negative_value_are_named():
    with pytest.raises(GraphError, match="no value is bound to the name 'a'"):
        evaluate("a+1", {})
    with pytest.raises(GraphError, match="'a-3' is -2 with a=1"):
        evaluate("a-3", {"a": 1})
    assert evaluate("a-3", {"a": 3}) == 0


def test_the_names_of_dimensions():
    assert names_of([3, "a*b", "batch-1"]) == {"a", "b", "batch"}
    assert is_name("a")
    assert not is_name("2*a")
    assert not is_name(2)


def test_a_shape_is_immutable_and_compared_by_value():
    shape = Shape([2, "b*a"])
    assert shape == Shape([2, "a*b"])
    assert hash(shape) == hash(Shape([2, "a*b"]))
    assert shape != Shape([2, "a"])
    assert (shape.rank, shape.size, str(shape)) == (2, "2*a*b", "[2, a*b]")
    assert shape.bind({"a": 3, "b": 4}) == (2, 12)
    with pytest.raises(AttributeError):
        shape.dims = (1,)
    with pytest.raises(GraphError, match="got the text 'ab'"):
        Shape("ab")
    with pytest.raises(GraphError, match="at most 16 dimensions; got 17"):
        Shape([1] * 17)
