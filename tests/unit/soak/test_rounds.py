"""What a soak does, by its seed."""

from __future__ import annotations

import pytest
from chaos.system.plan import OF_A_JOB, Target
from soak.rounds import LASTS_S, End, Restart, round_of

pytestmark = pytest.mark.thorough

ROUNDS = [round_of(1, number, flexod_too=False) for number in range(1, 31)]
WARM_UP = [round_of(1, number, flexod_too=True) for number in range(1, 5)]


def targets(rounds: list[object]) -> set[Target]:
    return {fault.target for each in rounds for fault in each.plan.faults}  # type: ignore[attr-defined]


def test_the_same_seed_makes_the_same_rounds_and_another_one_others() -> None:
    assert round_of(1, 3, flexod_too=False) == ROUNDS[2]
    assert round_of(2, 3, flexod_too=False) != ROUNDS[2]


def test_after_the_warm_up_everything_is_hit_but_flexod() -> None:
    assert targets([*ROUNDS]) == {*OF_A_JOB, Target.SLURMCTLD, Target.SLURMD}
    assert {which for each in ROUNDS for _, which in each.restarts} == {Restart.SLURMCTLD}


def test_in_the_warm_up_flexod_is_killed_and_restarted() -> None:
    assert Target.FLEXOD in targets([*WARM_UP])
    assert Restart.FLEXOD in {which for each in WARM_UP for _, which in each.restarts}


def test_jobs_fail_and_are_cancelled() -> None:
    assert {doomed.end for each in ROUNDS for doomed in each.doomed} == set(End)


def test_everything_happens_while_the_jobs_train() -> None:
    for each in (*ROUNDS, *WARM_UP):
        moments = [event.at_s for event in (*each.plan.faults, *each.plan.arrivals, *each.doomed)]
        moments += [at_s for at_s, _ in each.restarts]
        assert min(moments) > 0
        assert max(moments) < LASTS_S


def test_slurmctld_is_hit_once_in_a_round_at_most() -> None:
    """Else one may find it ended by the other, and take that for a death of its own."""
    for each in (*ROUNDS, *WARM_UP):
        hits = [fault.target for fault in each.plan.faults] + [which.value for _, which in each.restarts]
        assert hits.count(Target.SLURMCTLD) <= 1
