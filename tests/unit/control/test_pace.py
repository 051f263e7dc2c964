"""How often the controller looks: what a look costs counts, what one of them has waited for does not."""

from __future__ import annotations

import pytest

from flexo.config import ControllerSettings
from flexo.control.pace import Pace


def pace_after(*costs_s: float, **settings: float) -> Pace:
    pace = Pace(ControllerSettings.model_validate(settings))
    for cost_s in costs_s:
        pace.looked(cost_s)
    return pace


def test_a_look_that_waited_for_a_backup_slurmctld_does_not_delay_those_after_it() -> None:
    assert pace_after(0.01, 0.01, 19.0).least_s == 2.0
    assert pace_after(0.01, 0.01, 19.0, 15.0, 0.01).least_s == 2.0


def test_what_looks_cost_again_and_again_counts() -> None:
    assert pace_after(0.01, 0.01, 1.0, 1.0, 1.0).least_s == pytest.approx(50.0)


@pytest.mark.parametrize("lease_s", [60, 300])
def test_leases_are_looked_after_in_time_whatever_a_look_costs(lease_s: int) -> None:
    assert pace_after(19.0, lease_s=lease_s).least_s < lease_s / 2
