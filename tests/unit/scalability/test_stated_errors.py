"""The errors that the model of step times states are about those that it makes."""

from __future__ import annotations

import pytest
from fit_errors import by_kind, root_mean_square
from traces import needs_traces


@pytest.mark.thorough
def test_stated_errors_are_within_a_factor_of_two_of_the_true_ones():
    for what, found in by_kind(needs_traces("pollux/profiles")).items():
        if len(found) > 100:
            true = root_mean_square([miss.off for miss in found])
            stated = root_mean_square([miss.stated for miss in found])
            assert 0.5 < stated / true < 2, what
