"""What the doctor says of pool Aggregators, where they are enabled."""

from __future__ import annotations

from says import says

from flexo.aggregation.settings import AggregationSettings
from flexo.doctor.finding import Finding, Level
from flexo.doctor.flexod import AnsweredAggregator, FlexodAnswer, PoolAnswer
from flexo.doctor.pool import check_pool
from flexo_cli.site.doctor import _pool
from flexo_protos.v1 import admin_pb2

ENABLED = AggregationSettings(enabled=True, quota_mib=100)
ROOMY = 1 << 40


def answer(*aggregators: AnsweredAggregator, wanted: int = 0) -> FlexodAnswer:
    return FlexodAnswer(version="1.2", pool=PoolAnswer(aggregators, wanted))


def checks(findings: list[Finding]) -> list[tuple[str, Level]]:
    return [(each.check, each.level) for each in findings]


def test_a_cluster_without_a_pool_hears_nothing_of_it() -> None:
    assert check_pool(answer(), AggregationSettings()) == []
    assert check_pool(FlexodAnswer(stands_by=True), ENABLED) == []


def test_enough_aggregators_of_the_same_release_with_enough_memory_are_ok() -> None:
    found = check_pool(answer(AnsweredAggregator("c1:7000", "1.2", ROOMY), wanted=1), ENABLED)
    assert checks(found) == [("pool.attached", Level.OK)]


def test_fewer_than_jobs_need_is_a_warning() -> None:
    (found,) = check_pool(answer(wanted=2), ENABLED)
    assert (found.check, found.level) == ("pool.attached", Level.WARNING)
    assert says(found.what, "0 pool Aggregators", "jobs need 2")
    assert says(found.fix, "pool_users")


def test_another_release_is_named() -> None:
    found = check_pool(answer(AnsweredAggregator("c1:7000", "1.1", ROOMY)), ENABLED)
    assert says(found[1].what, "c1:7000", "1.1", "1.2")


def test_memory_that_cannot_hold_a_job_at_its_quota_is_a_warning() -> None:
    found = check_pool(answer(AnsweredAggregator("c1:7000", "1.2", 299 << 20)), ENABLED)
    assert checks(found)[1] == ("pool.memory", Level.WARNING)
    assert says(found[1].what, "100 MiB", "300 MiB", "c1:7000")
    found = check_pool(answer(AnsweredAggregator("c1:7000", "1.2", 300 << 20)), ENABLED)
    assert checks(found) == [("pool.attached", Level.OK)]


def test_a_flexod_that_was_not_restarted_has_no_pool_yet() -> None:
    (found,) = check_pool(FlexodAnswer(version="1.2"), ENABLED)
    assert says(found.fix, "restart")


def test_a_silent_flexod_is_not_checked() -> None:
    (found,) = check_pool(FlexodAnswer(silent="no flexod"), ENABLED)
    assert found.level is Level.NOT_CHECKED


def test_the_doctor_reads_what_flexod_answers() -> None:
    view = admin_pb2.PoolView(
        aggregators=[admin_pb2.PoolAggregatorView(name="c1:7000", flexo_version="1.2", memory_limit_bytes=7)],
        wanted=3,
    )
    assert _pool(view) == PoolAnswer((AnsweredAggregator("c1:7000", "1.2", 7),), 3)
