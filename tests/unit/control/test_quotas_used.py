"""What running jobs use of their tenants' quotas on a Slurm cluster."""

from __future__ import annotations

from dataclasses import replace

from controller_world import BOB, slurm_job

from flexo.control.quotas import guarantees
from flexo.model.queue import JobKey, JobState, SatelliteTag
from flexo.model.training import Quota


def running(number: int, gpus: int, at: float = 10.0, account: str = "research"):
    return slurm_job(number, BOB, gpus=gpus, started_at=at, account=account)


def within(quotas, *jobs) -> tuple[set[int], list[int]]:
    """Numbers of the guaranteed jobs, and what is used of each quota."""
    found = guarantees(quotas, jobs)
    assert [quota.gpus for quota in found.quotas] == list(quotas.values())
    return {key.job_id for key in found.jobs}, [quota.used for quota in found.quotas]


def test_jobs_use_their_accounts_quota_in_the_order_in_which_they_started():
    jobs = [running(1, 4, at=20.0), running(2, 4, at=10.0), running(3, 4, at=30.0, account="teaching")]
    assert within({"research": 6}, *jobs) == ({2}, [4])
    assert within({"research": 8, "teaching": 4}, *jobs) == ({1, 2, 3}, [8, 4])


def test_a_job_that_the_quota_does_not_hold_whole_lets_smaller_ones_pass():
    jobs = [running(1, 4, at=10.0), running(2, 5, at=20.0), running(3, 2, at=30.0)]
    assert within({"research": 6}, *jobs) == ({1, 3}, [6])


def test_when_a_guaranteed_job_ends_another_moves_up():
    assert within({"research": 6}, running(2, 5, at=20.0), running(3, 2, at=30.0)) == ({2}, [5])


def test_where_slurm_keeps_no_accounts_users_stand_for_them():
    assert within({"bob": 4}, running(1, 4, account="")) == ({1}, [4])


def test_neither_satellites_nor_jobs_that_wait_nor_jobs_without_gpus_use_a_quota():
    satellite = replace(running(1, 2), satellite=SatelliteTag(JobKey(9), "g", 2))
    waiting = replace(running(2, 2), state=JobState.PENDING)
    assert within({"research": 6}, satellite, waiting, running(3, 0)) == (set(), [0])


def test_without_quotas_nobody_is_guaranteed_anything():
    assert guarantees({}, [running(1, 1)]).quotas == ()
    assert within({"teaching": 4}, running(1, 1)) == (set(), [0])
    assert guarantees({"teaching": 4}, []).quotas == (Quota("teaching", 4, 0),)
