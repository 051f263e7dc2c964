"""When requests run on a parameter server that jobs share: the paper's figure 5, and late requests."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from flexo_bench.service.resident.cyclic_execution import CyclicExecution
from flexo_bench.service.resident.frames import Cycle, Work

pytestmark = pytest.mark.thorough

BEGAN = 1000


def execution(cycle: int = 12, **works: tuple[int, int]) -> CyclicExecution:
    """`works`: duration and execution time by job, in nanoseconds."""
    return CyclicExecution(Cycle(cycle, {job: Work(*work) for job, work in works.items()}), BEGAN)


def run_at(found: CyclicExecution, job: str, *times: int) -> list[int]:
    """When the requests of successive steps run that come at these times after the beginning."""
    return [found.runs_at(job, step + 1, BEGAN + at) - BEGAN for step, at in enumerate(times)]


def test_jobs_of_6_and_12_run_twice_and_once_in_a_cycle_of_12_without_waiting() -> None:
    found = execution(J1=(6, 2), J2=(12, 3))
    assert run_at(found, "J1", 1, 7, 13, 19) == [1, 7, 13, 19]
    assert run_at(found, "J2", 0, 12) == [0, 12]


def test_a_job_of_5_runs_twice_in_a_cycle_of_12_so_that_its_iterations_take_6() -> None:
    found = execution(J0=(5, 1), J2=(12, 3))
    assert run_at(found, "J0", 0, 5, 11, 17, 23) == [0, 6, 12, 18, 24]


def test_all_requests_of_a_step_run_from_the_same_time_on() -> None:
    found = execution(J0=(5, 1), J2=(12, 3))
    assert found.runs_at("J0", 1, BEGAN) == BEGAN
    assert [found.runs_at("J0", 2, BEGAN + at) for at in (5, 5, 8)] == [BEGAN + 6, BEGAN + 6, BEGAN + 8]


def test_a_server_with_one_job_lets_it_run_at_once_and_so_do_jobs_outside_its_cycle() -> None:
    assert run_at(execution(J0=(5, 1)), "J0", 0, 1, 2) == [0, 1, 2]
    assert run_at(execution(J0=(5, 1), J2=(12, 3)), "new", 0, 1, 2) == [0, 1, 2]


def test_a_late_request_runs_beside_the_reserved_slots_of_the_cycle() -> None:
    found = execution(J1=(6, 2), J2=(12, 3))
    assert run_at(found, "J2", 0) == [0]
    assert run_at(found, "J1", 6, 9) == [6, 9], "it missed its first window; 9 + 2 are within 12"


def test_a_late_request_that_would_exceed_the_cycle_runs_in_the_next_one_as_its_first_request() -> None:
    found = execution(J1=(6, 2), J2=(12, 3))
    assert run_at(found, "J2", 0) == [0]
    assert run_at(found, "J1", 6, 11, 15) == [6, 12, 18]


def test_slots_that_another_job_still_needs_postpone_a_late_request() -> None:
    found = execution(J1=(6, 2), J2=(12, 3))
    assert run_at(found, "J1", 6, 8) == [6, 12], "J2 has 3 to come; 8 + 3 + 2 exceed 12"


def test_windows_that_passed_while_a_job_was_slow_do_not_let_it_run_more_often_later() -> None:
    found = execution(J0=(5, 1), J2=(12, 3))
    assert run_at(found, "J0", 0, 40, 41, 42) == [0, 40, 42, 48]
