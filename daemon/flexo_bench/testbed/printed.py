"""The figures of the testbed in Lyra's slides ("Evaluation - Testbed Results")."""

from __future__ import annotations

from dataclasses import dataclass

JOBS = 180
ELASTIC_JOBS = 10
SECONDS = 8 * 3600.0
FUNGIBLE_SHARE = 0.21
"""Part of the jobs that are fungible, in scenario Basic of the simulation. The testbed prints none."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. The printed 95th percentiles lie below the means, so nothing is compared with them."""

    mean: float
    median: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    queue: Times
    jct: Times
    preempted: float
    """Ratio of preemptions; the slides do not say to what."""


BASELINE = Row(Times(1532, 772), Times(4078, 2183), 0.0)
LYRA = Row(Times(1109, 503), Times(3335, 1747), 0.18)
LOANS, RECLAIMS, SERVERS_RECLAIMED, SCALINGS = 6, 8, 10, 73
ON_LOAN_USE = 0.93
"""Use of servers on loan, in the simulation ("above ~93%")."""
