"""The tests' own way to ask whether a message has its facts."""

from __future__ import annotations

import pytest
from says import says


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ((1, "t2"), True),
        (("1 of 10",), True),
        ((10, 2), False),
        (("t",), False),
        (("0.5 s",), True),
        ((5,), False),
    ],
)
def test_a_fact_is_a_whole_name_or_number(facts: tuple[object, ...], told: bool) -> None:
    assert says("1 of 10 workers leave t2 in 0.5 s", *facts) is told
