"""How often a leader asks Slurm about satellites that wait: at first soon, then more seldom, never late."""

from __future__ import annotations

import pytest

from flexo.grants import START_MARGIN_S
from horovod_elastic.leader.satellite_manager import poll_interval_s


@pytest.mark.parametrize(("waited_s", "until_next_s"), [(0, 5), (12, 5), (30, 10), (60, 20), (3600, 20)])
def test_the_longer_satellites_wait_the_more_seldom_slurm_is_asked(
    waited_s: float, until_next_s: float
) -> None:
    assert poll_interval_s(waited_s) == until_next_s


def test_a_satellite_that_waited_too_long_is_given_up_before_flexod_forgets_its_grant() -> None:
    assert max(poll_interval_s(waited) for waited in range(3600)) < START_MARGIN_S
