"""How often the controller looks: what a look costs counts, what one of them has waited for does not."""

from __future__ import annotations

import pytest

from flexo.config import ControllerSettings
from flexo.control.poll_interval import PollInterval


def poll_interval_after(*costs_s: float, **settings: float) -> PollInterval:
    pace = PollInterval(ControllerSettings.model_validate(settings))
    for cost_s in costs_s:
        pace.record_poll_cost(cost_s)
    return pace


def test_a_look_that_waited_for_a_backup_slurmctld_does_not_delay_those_after_it() -> None:
    assert poll_interval_after(0.01, 0.01, 19.0).least_interval_s == 2.0
    assert poll_interval_after(0.01, 0.01, 19.0, 15.0, 0.01).least_interval_s == 2.0


def test_what_looks_cost_again_and_again_counts() -> None:
    assert poll_interval_after(0.01, 0.01, 1.0, 1.0, 1.0).least_interval_s == pytest.approx(50.0)


@pytest.mark.parametrize("time_limit_s", [60, 300])
def test_time_limits_are_extended_in_time_whatever_a_poll_costs(time_limit_s: int) -> None:
    assert poll_interval_after(19.0, time_limit_s=time_limit_s).least_interval_s < time_limit_s / 2
