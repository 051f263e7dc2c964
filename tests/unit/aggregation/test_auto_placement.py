"""Whose Aggregators sum for jobs that leave it to flexod: own nodes first, then satellites, then the pool."""

from __future__ import annotations

from dataclasses import replace

from flexo.aggregation.auto_placement import (
    KEPT_S,
    POOL_WITHIN_S,
    SATELLITES_WITHIN_S,
    SETTLED_ITERATIONS,
    WORSE_ITERATIONS,
    AutoPlacement,
    Replaced,
)
from flexo.model.aggregation import AggregationUse, Summing, UsedAggregator
from flexo.model.elastic import LeaderReport, SatelliteReport, SatelliteState
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo_protos.resources import Resources

KEY = JobKey(7)
REST_S = 1800.0
OWN, SATELLITES, POOL = Summing.OWN, Summing.SATELLITES, Summing.POOL
ELSEWHERE = (UsedAggregator("c1:7000", 1),)


class Job:
    """A job of four workers with two CPUs each, on two nodes, whose Aggregators use a third of a core."""

    def __init__(self, *, has_pool: bool = True, **changes: object) -> None:
        self.placement = AutoPlacement(REST_S, has_pool=has_pool)
        self.has_pool = has_pool
        use = AggregationUse(False, 100, 0.2, 2, 0, 1000, 2, auto=True, most_satellites=2, busy=0.33)
        self.use = replace(use, **changes)  # type: ignore[arg-type]
        self.report = LeaderReport(
            KEY, Principal("1"), Range(2, 8), Resources(gpus=1, cpus=2), ("n1", "n2"), 4, 1, 9, True, ()
        )
        self.now = 1000.0
        self.changes: list[Replaced] = []

    def look(self, after_s: float = 1.0, **changes: object) -> Summing:
        """flexod's choice after this time, with these changes of the report."""
        self.now += after_s
        self.use = replace(self.use, **changes)  # type: ignore[arg-type]
        reports, changed = self.placement.resolve([replace(self.report, aggregation=self.use)], self.now)
        self.changes += changed
        told = reports[KEY].aggregation
        assert told is not None
        assert told.placement is not None
        self.why = told.placement.why
        assert (told.wants_pool, bool(told.satellites)) == (
            told.placement.summing is POOL,
            told.placement.summing is SATELLITES,
        )
        return told.placement.summing

    def elsewhere(self, iteration_s: float, iterations: int = SETTLED_ITERATIONS) -> Summing:
        """flexod's choice once other Aggregators sum in this time."""
        return self.look(used=ELSEWHERE, version=1, iteration_s=iteration_s, iterations=iterations)

    def home(self) -> Summing:
        """flexod's choice once its own Aggregators sum again."""
        return self.look(used=(), version=2, iteration_s=0.2, iterations=SETTLED_ITERATIONS)

    def restart_flexod(self) -> None:
        self.placement = AutoPlacement(REST_S, has_pool=self.has_pool)


def test_a_job_whose_own_aggregators_have_little_to_do_stays_on_its_own_nodes() -> None:
    job = Job(busy=0.09)
    assert [job.look() for _ in range(3)] == [OWN] * 3
    assert "use 9% of a core" in job.why
    assert job.changes == []


def test_a_job_whose_user_has_chosen_is_left_as_it_is() -> None:
    job = Job()
    report = replace(job.report, aggregation=replace(job.use, auto=False, satellites=1))
    assert job.placement.resolve([report], 1.0) == ({KEY: report}, ())


def test_nothing_is_tried_before_the_job_was_measured_on_its_own_nodes() -> None:
    for unknown in ({"iterations": SETTLED_ITERATIONS - 1}, {"iteration_s": 0.0}):
        job = Job(**unknown)
        assert job.look() is OWN
        assert "measured" in job.why


def test_the_sums_of_one_node_stay_there() -> None:
    job = Job(nodes=1)
    assert job.look() is OWN
    assert "one node" in job.why


def test_satellites_are_tried_by_a_job_whose_aggregators_are_busy_or_have_no_cpu() -> None:
    job = Job()
    assert job.look() is SATELLITES
    assert "use 33% of a core" in job.why
    full = Job(busy=0.01)
    full.report = replace(full.report, shape=Resources(gpus=1, cpus=1))
    assert full.look() is SATELLITES
    assert "one CPU each" in full.why


def test_satellites_are_kept_if_iterations_become_shorter() -> None:
    job = Job()
    job.look()
    assert job.elsewhere(0.9, SETTLED_ITERATIONS - 1) is SATELLITES, "the first ones do not count"
    assert job.elsewhere(0.15) is SATELLITES
    assert "0.15 s there, and 0.2 s on its own nodes" in job.why
    assert job.elsewhere(0.16, 10_000) is SATELLITES
    assert [each.summing for each in job.changes] == [SATELLITES]


def test_a_job_that_gains_nothing_goes_back_and_rests() -> None:
    job = Job()
    job.look()
    assert job.elsewhere(0.195) is OWN
    assert "0.195 s there, and 0.2 s on its own nodes" in job.why
    assert "rests" in job.why
    assert job.home() is OWN
    assert job.look(REST_S - 2) is OWN
    assert job.look(2) is SATELLITES, "its rest is over"


def test_a_job_that_becomes_slower_than_at_home_goes_back_but_not_for_a_moment() -> None:
    job = Job()
    job.look()
    job.elsewhere(0.15)
    assert job.elsewhere(0.25, 200) is SATELLITES
    assert job.elsewhere(0.15, 210) is SATELLITES
    assert job.elsewhere(0.25, 220) is SATELLITES
    assert job.elsewhere(0.25, 220 + WORSE_ITERATIONS) is OWN


def test_a_job_that_was_resized_before_it_was_judged_is_measured_at_home_again() -> None:
    job = Job()
    job.look()
    job.report = replace(job.report, training_workers=6)
    assert job.elsewhere(0.1) is OWN
    assert "resized" in job.why
    assert job.home() is SATELLITES, "it does not rest"


def test_a_job_that_was_judged_stays_where_it_is_when_it_is_resized() -> None:
    job = Job()
    job.look()
    job.elsewhere(0.15)
    job.report = replace(job.report, training_workers=6)
    assert job.elsewhere(0.5, 1000) is SATELLITES


def test_the_pool_is_asked_if_no_satellite_comes_and_then_the_job_stays_at_home() -> None:
    job = Job()
    job.look()
    assert job.look(SATELLITES_WITHIN_S - 1) is SATELLITES
    assert job.look(2) is POOL
    assert "none of its satellites" in job.why
    assert job.look(POOL_WITHIN_S + 1) is OWN
    assert "no room" in job.why
    assert job.look(REST_S - 1) is OWN
    assert [each.summing for each in job.changes] == [SATELLITES, POOL, OWN]


def test_satellites_that_were_lost_are_waited_for_as_long_as_new_ones() -> None:
    job = Job()
    job.look()
    job.elsewhere(0.15)
    job.elsewhere(0.15, 10_000)
    assert job.look(1, used=()) is SATELLITES
    assert job.look(SATELLITES_WITHIN_S + 1) is POOL


def test_a_cluster_without_such_satellites_has_the_pool_only_and_a_site_without_a_pool_none() -> None:
    job = Job(most_satellites=0)
    assert job.look() is POOL
    assert job.elsewhere(0.3) is OWN
    poor = Job(has_pool=False)
    poor.look()
    assert poor.look(SATELLITES_WITHIN_S + 1) is OWN
    assert "has no pool" in poor.why
    poorest = Job(has_pool=False, most_satellites=0)
    assert poorest.look() is OWN
    assert "has no pool" in poorest.why


def test_another_flexod_leaves_a_job_where_it_is() -> None:
    job = Job()
    job.look()
    job.elsewhere(0.15)
    job.restart_flexod()
    sums = SatelliteReport(900, "a1", "c1", 0, SatelliteState.TRAINING)
    job.report = replace(job.report, satellites=(sums,))
    assert job.elsewhere(0.9, 10_000) is SATELLITES, "its time at home is not known any more"
    job.restart_flexod()
    job.report = replace(job.report, satellites=())
    assert job.look() is POOL
    assert [each.summing for each in job.changes] == [SATELLITES]


def test_a_leader_that_is_away_for_a_moment_does_not_begin_anew() -> None:
    job = Job()
    job.look()
    job.placement.resolve([], job.now + 60)
    assert job.look(61) is SATELLITES
    job.placement.resolve([], job.now + KEPT_S + 1)
    assert job.look(KEPT_S + 2, iterations=0) is OWN
