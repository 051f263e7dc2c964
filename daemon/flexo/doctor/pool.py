"""Checks pool Aggregators, where [aggregation] is enabled: attached ones, their releases and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flexo.aggregation.settings import AggregationSettings
from flexo.doctor.finding import Finding, not_checked, ok, warning
from flexo.doctor.flexod import FlexodAnswer, PoolAnswer

_MIB: Final = 1 << 20
_COPIES: Final = 3
"""An Aggregator needs at least so many times a job's gradients: of one sender, their sum, and a result."""


def check_pool(answer: FlexodAnswer, settings: AggregationSettings) -> list[Finding]:
    """Check the pool of the flexod that gave this answer. No findings if [aggregation] is not enabled."""
    if not settings.enabled or answer.stands_by:
        return []
    if answer.silent:
        return [not_checked("pool", "pool Aggregators: flexod does not answer")]
    if answer.pool is None:
        what = "[aggregation] enabled = true, but flexod has no pool"
        return [warning("pool.enabled", what, "`systemctl restart flexod`: the setting needs a restart.")]
    return [*_attached(answer.pool), *_releases(answer), *_memory(answer.pool, settings)]


def _attached(pool: PoolAnswer) -> Iterator[Finding]:
    attached = len(pool.aggregators)
    if attached and attached >= pool.wanted:
        yield ok("pool.attached", f"{attached} pool Aggregators are attached, and jobs need {pool.wanted}")
        return
    what = f"{attached} pool Aggregators are attached, and jobs need {pool.wanted}; jobs use their own"
    fix = "Start more Aggregators as flexod's account, or as one of [aggregation] pool_users."
    yield warning("pool.attached", what, fix)


def _releases(answer: FlexodAnswer) -> Iterator[Finding]:
    assert answer.pool is not None
    for each in answer.pool.aggregators:
        if each.version != answer.version:
            said = each.version or "of an unknown release"
            what = f"pool Aggregator {each.name} is {said} and flexod {answer.version}"
            yield warning("pool.version", what, "Install the same release there, and start it again.")


def _memory(pool: PoolAnswer, settings: AggregationSettings) -> Iterator[Finding]:
    needed_mib = _COPIES * settings.quota_mib
    small = [each for each in pool.aggregators if each.memory_limit < needed_mib * _MIB]
    if not small:
        return
    names = ", ".join(each.name for each in small)
    what = (
        f"jobs may have {settings.quota_mib} MiB of gradients (quota_mib), for which an Aggregator needs"
        f" {needed_mib} MiB at least: {names} has less"
    )
    fix = "flexo.toml: a smaller quota_mib or a larger memory_mib; or start Aggregators with more memory."
    yield warning("pool.memory", what, fix)
