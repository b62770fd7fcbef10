"""The hand-written JSON is JSON: the standard library reads back what was written, and what has no place in the contract is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.collector.line import to_json

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(TREES)
def test_any_tree_is_read_back_exactly_from_one_ascii_line(tree: object) -> None:
    written = to_json(tree)
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written) == tree


def test_true_is_not_written_as_1() -> None:
    assert to_json([True, 1, False, 0]) == "[true,1,false,0]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0, b"bytes", {1}, [0.5], {"temperature_c": math.nan}])
def test_a_float_or_a_foreign_value_is_refused_wherever_it_stands(value: object) -> None:
    with pytest.raises(TypeError, match="not in the contract"):
        to_json(value)
