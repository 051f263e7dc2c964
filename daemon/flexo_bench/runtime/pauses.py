"""Computes how long a resize stopped the workers that stayed, alike for every rival. Functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flexo_bench.runtime.worklog import Batch, WorkLog, batch_seconds, by_worker, mean_seconds

AROUND = 3
"""Mini-batches on each side of a change that `Pause.around_s` counts, unless told otherwise."""
NEAR = 30
"""Mini-batches on each side of a change from which the time of one is taken."""


@dataclass(frozen=True, slots=True)
class Change:
    """A requested resize, or a restart of all workers. Times are seconds since the epoch."""

    before: int
    after: int
    asked_at: float


@dataclass(frozen=True, slots=True)
class Pause:
    """The cost of one resize.

    `pause_s`: time from the end of a staying worker's last mini-batch before the change to the end of its
    first *new* one after the change, less the time of a mini-batch at the new size. Repeated mini-batches are
    not new. The longest time of all staying workers counts.
    `around_s`: extra time that a few mini-batches before and as many after the change took together, compared
    with as many undisturbed ones. It shows costs in the neighbouring mini-batches. The longest time counts.
    """

    before: int
    after: int
    pause_s: float
    around_s: float
    redone: int
    """Number of mini-batches that were repeated."""
    waited_s: float
    """Time from the request to the last mini-batch at the old size."""
    first_useful_s: float
    """Time from the request to the end of the first mini-batch at the new size."""
    batch_before_s: float
    batch_after_s: float

    @property
    def out(self) -> bool:
        """True if the job grew."""
        return self.after > self.before


class NoChange(Exception):
    """The logs do not show that change."""


def pause(batches: Sequence[Batch], change: Change, *, by_rank: bool = False, around: int = AROUND) -> Pause:
    """The cost of the resize `change`, from all workers' mini-batches around it.

    `by_rank`: identify workers by rank, not by process, if a resize ends all processes and starts others.
    `around`: the mini-batches on each side that `around_s` counts. Raises NoChange.
    """
    old, new = _sides(batches, change)
    sides = [
        (before, after)
        for who, before in _streams(old, by_rank).items()
        if (after := _streams(new, by_rank).get(who))
    ]
    if not sides:
        raise NoChange(f"nobody trained as one of {change.before} and then as one of {change.after}")
    settled = [batch for _, after in sides for batch in after[1 : NEAR + 1]]
    undisturbed = [b for before, _ in sides for b in before if b.at <= change.asked_at][-NEAR * len(sides) :]
    batch_after, batch_before = batch_seconds(settled), batch_seconds(undisturbed)
    gaps = [_gap(before, after) for before, after in sides]
    return Pause(
        before=change.before,
        after=change.after,
        pause_s=max(gap.seconds for gap in gaps) - batch_after,
        around_s=max(_around(before, after, around, batch_before, batch_after) for before, after in sides),
        redone=max(gap.redone for gap in gaps),
        waited_s=max(before[-1].at for before, _ in sides) - change.asked_at,
        first_useful_s=min(gap.until for gap in gaps) - change.asked_at,
        batch_before_s=batch_before,
        batch_after_s=batch_after,
    )


def warming_slows(log: WorkLog, change: Change) -> float | None:
    """Share by which the others' mini-batches take longer, on average, while newcomers start and warm up.

    0.1: a tenth longer than the NEAR mini-batches before. None if no worker trained meanwhile.
    """
    newcomers = {m.worker for m in log.moments if m.event == "started" and m.at > change.asked_at}
    begun = [m.at for m in log.moments if m.event == "started" and m.worker in newcomers]
    warm = [m.at for m in log.moments if m.event == "built" and m.worker in newcomers]
    if not begun or not warm:
        return None
    start, end = min(begun), max(warm)
    old = [batch for batch in log.batches if batch.size == change.before]
    before = [b for each in by_worker(b for b in old if b.at < start).values() for b in each[-NEAR:]]
    meanwhile = [batch for batch in old if start <= batch.at <= end]
    usual, slow = mean_seconds(before), mean_seconds(meanwhile)
    return slow / usual - 1 if usual and slow else None


@dataclass(frozen=True, slots=True)
class _Gap:
    seconds: float
    until: float
    redone: int


def _gap(before: Sequence[Batch], after: Sequence[Batch]) -> _Gap:
    """The gap between the last mini-batch of one stream and the first new one of the next."""
    last = max(before, key=lambda batch: batch.step)
    fresh = next((batch for batch in after if batch.step > last.step), None)
    if fresh is None:
        raise NoChange(f"nothing was done after step {last.step}")
    return _Gap(fresh.at - last.at, fresh.at, sum(1 for batch in after if batch.step <= last.step))


def _sides(batches: Sequence[Batch], change: Change) -> tuple[list[Batch], list[Batch]]:
    """The mini-batches before and after the change."""
    at_new = [batch for batch in batches if batch.size == change.after]
    if change.before == change.after:  # all processes are others afterwards
        known = {batch.worker for batch in batches if batch.at <= change.asked_at}
        at_new = [batch for batch in at_new if batch.worker not in known]
    until = min((batch.at for batch in at_new if batch.at > change.asked_at), default=math.inf)
    new = [batch for batch in at_new if batch.at >= until]
    old = [batch for batch in batches if batch.size == change.before and batch.at <= until]
    return [batch for batch in old if batch not in new[:1]], new


def _around(
    before: Sequence[Batch], after: Sequence[Batch], around: int, batch_before: float, batch_after: float
) -> float:
    last = max(batch.step for batch in before)
    fresh = [batch for batch in after if batch.step > last]
    if len(before) <= around or len(fresh) < around:
        return float("nan")
    spent = fresh[around - 1].at - before[-1 - around].at
    return spent - around * (batch_before + batch_after)


def _streams(batches: Iterable[Batch], by_rank: bool) -> dict[int, list[Batch]]:
    """Each worker's mini-batches in order of time."""
    streams: dict[int, list[Batch]] = {}
    for batch in sorted(batches, key=lambda each: each.at):
        streams.setdefault(batch.rank if by_rank else batch.worker, []).append(batch)
    return streams
