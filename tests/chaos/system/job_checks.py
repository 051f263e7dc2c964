"""What must never happen, looked for in what jobs wrote down themselves. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from chaos.checker import check
from chaos.system import bounds
from chaos.system.evidence import Evidence, Strike, Submitted, Training, Use, Violation
from chaos.system.plan import Deed, Elastic, Target


def no_gpu_is_used_twice(evidence: Evidence) -> Iterator[Violation]:
    """By the processes' own logs: whoever used a GPU was alone on it."""
    by_gpu: dict[tuple[str, int], list[Use]] = defaultdict(list)
    for use in evidence.uses:
        by_gpu[use.node, use.gpu].append(use)
    for (node, gpu), uses in by_gpu.items():
        for one, other in combinations(sorted(uses, key=lambda use: use.since), 2):
            if min(one.until, other.until) - other.since > bounds.OVERLAP_S:
                both = f"{one.who} and {other.who} both used GPU {gpu} of {node}"
                together_s = min(one.until, other.until) - other.since
                yield Violation("a GPU is used by one process", f"{both} for {together_s:.1f} s")


def sizes_stay_in_range(evidence: Evidence) -> Iterator[Violation]:
    """Never more workers than the largest size; fewer than the smallest only after a hit on that job."""
    for what, job, training in _trained(evidence):
        for world in training.record.worlds:
            if world.size > what.largest:
                yield Violation(
                    "sizes stay in range", f"{job.name} trained with {world.size} workers, of {what.largest}"
                )
            elif world.size < what.smallest and not _hit(evidence, job, world.began_at, bounds.RECOVERS_S):
                yield Violation(
                    "sizes stay in range", f"{job.name} trained with {world.size} workers, of {what.smallest}"
                )


def every_sample_counts_once(evidence: Evidence) -> Iterator[Violation]:
    """Nothing is skipped, or seen twice but for what came after the last commit of those who are left."""
    for what, job, training in _trained(evidence):
        verdict = check(training.record, SAMPLES, struck_at=-math.inf)
        for wrong in verdict.wrong:
            yield Violation("every sample counts once", f"{job.name}: {wrong}")
        orphaned = any(strike.orphaned and strike.job_id == job.job_id for strike in evidence.strikes)
        if verdict.restarts and not orphaned and not _requeued(evidence, what, job):
            yield Violation("nothing begins again while somebody holds the model", f"{job.name} did")


def only_hits_cost_steps(evidence: Evidence) -> Iterator[Violation]:
    """A step is done again only after a process of that very job was hit, and soon after.

    One that slurmctld ends counts as hit: killed, it forgets a satellite that has just begun, and ends it.
    """
    for what, job, training in _trained(evidence):
        done = 0
        for world in training.record.worlds:
            lost = done - world.first_step
            hit = _hit(evidence, job, world.began_at, bounds.RECOVERS_S)
            hit = hit or _slurm_forgot(evidence, job, world.began_at)
            if lost > 0 and not hit and not _requeued(evidence, what, job):
                yield Violation(
                    "only hits cost steps", f"{job.name} lost {lost} steps after step {world.first_step}"
                )
            done = max((step for step in world.steps if world.whole(step)), default=world.first_step)


def _slurm_forgot(evidence: Evidence, job: Submitted, at: float) -> bool:
    """Whether slurmctld was killed shortly before, just after a satellite of the job had come."""
    came: dict[int, float] = {}
    for look in evidence.looks:
        for each in look.jobs:
            if each.tag is not None and each.tag.base == job.job_id:
                came.setdefault(each.job_id, look.at)
    return any(
        0 <= strike.at - since <= bounds.SLURM_FORGETS_S
        and strike.at <= at <= strike.until + bounds.RECOVERS_S
        for strike in evidence.strikes
        if (strike.target, strike.deed) == (Target.SLURMCTLD, Deed.KILL)
        for since in came.values()
    )


def _requeued(evidence: Evidence, what: Elastic, job: Submitted) -> bool:
    """Whether Slurm has begun it again, as it may with a fungible one (others: no_base_is_taken)."""
    last = evidence.looks[-1].job(job.job_id)
    return what.fungible and last is not None and last.restarts > 0


def training_goes_on(evidence: Evidence) -> Iterator[Violation]:
    """Whatever fails, mini-batches follow each other; soonest where none of the job's processes was hit."""
    for what, job, training in _trained(evidence):
        for since, until in pairwise((*_batches(training), training.stopped_at)):
            hit = _hit(evidence, job, until, bounds.STANDS_STILL_S)
            allowed_s = bounds.STANDS_STILL_S if hit else bounds.UNTOUCHED_STANDS_STILL_S
            if until - since > allowed_s and not (what.fungible and _was_away(evidence, job, since, until)):
                stood = f"{job.name} had no mini-batch for {until - since:.0f} s from {since:.1f} on"
                yield Violation("training goes on", f"{stood}; {allowed_s:.0f} s are allowed")


def pauses(evidence: Evidence) -> dict[str, float]:
    """The longest time without a mini-batch of each job that has trained. Seconds."""
    return {
        job.name: max((after - before for before, after in pairwise(_batches(training))), default=0.0)
        for _, job, training in _trained(evidence)
    }


def _trained(evidence: Evidence) -> Iterator[tuple[Elastic, Submitted, Training]]:
    for what, job in evidence.elastic():
        if (training := evidence.training.get(job.job_id)) is not None:
            yield what, job, training


def _batches(training: Training) -> Sequence[float]:
    return [at for at in training.record.batches if at <= training.stopped_at]


def _hit(evidence: Evidence, job: Submitted, at: float, within_s: float) -> bool:
    """Whether a process of the job was hit, or was held, less than `within_s` before."""

    def near(strike: Strike) -> bool:
        return strike.at <= at and at - strike.until <= within_s

    return any(
        strike.of_a_job and strike.job_id == job.job_id and near(strike) for strike in evidence.strikes
    )


def _was_away(evidence: Evidence, job: Submitted, since: float, until: float) -> bool:
    """Whether its base waited in the queue meanwhile, by Slurm's word."""
    between = [look for look in evidence.looks if since <= look.at <= until]
    return any((shown := look.job(job.job_id)) is not None and not shown.runs for look in between)


SAMPLES = 187
"""Of an epoch: no number of workers divides it."""
