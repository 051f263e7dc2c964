"""Explains why a job has its present workers, in a headline and in sentences: `flexo why` on the present."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flexo.control.pending import explain_pending, explain_rigid, headline_of_pending, waits_for
from flexo.control.silence import silent_for
from flexo.control.views import JobView, UnknownJob, View
from flexo.model.aggregation import PooledJobView
from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.measured import ScalingPoint, Source
from flexo.model.queue import JobKey, JobState, QueuedJob
from flexo.model.ranges import Range
from flexo.scalability.efficiency import efficiencies
from flexo.scalability.measured import speed_of
from flexo.scalability.run_time import RunTimes
from flexo.sharing.pairs import Pair
from flexo.words import duration, workers

_BY: Final = {
    Source.PROGRESS: "going by its own progress",
    Source.HISTORY: "going by how long its user's like jobs took",
    Source.TIME_LIMIT: "if its base alone would take all of its time limit",
}
_POINTS: Final = 16
"""The most sizes that a sentence about a profile names."""


def explain(job_id: int, view: View) -> tuple[str, ...]:
    """The explanation for the queue's job `job_id`. Raises UnknownJob."""
    for shown in view.jobs:
        if shown.job.key.job_id == job_id:
            return _explain_running(shown, view)
    queued = _queued(job_id, view)
    if queued is None:
        raise UnknownJob(f"job {job_id} is not in the queue")
    if any(job.job_id == job_id for job in view.unknown):
        return (
            f"job {job_id} has a satellite's comment, but it is not what any grant of flexod's allows:"
            f" for flexod it is an ordinary job of {queued.user}'s",
        )
    if queued.satellite is not None:
        return (f"job {job_id} is a satellite of job {queued.satellite.base}; ask about that one",)
    if queued.elastic is None:
        return explain_rigid(queued, view)
    if queued.state is JobState.PENDING:
        return explain_pending(queued, view)
    return (f"job {job_id} is ending",)


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's size and the reason for it, in a few words."""

    text: str = ""
    """``4 of 2-8 workers: no idle a100``. "": it is no elastic job that runs or is pending."""
    reason: str = ""
    """``no idle a100``: why it has no more, or what it waits for. "": nothing."""


def headline(job_id: int, view: View) -> Headline:
    """The headline on the queue's job `job_id`."""
    for shown in view.jobs:
        if shown.job.key.job_id == job_id:
            return _headline_of(shown, view)
    job = _queued(job_id, view)
    if job is None or job.elastic is None or job.state is not JobState.PENDING:
        return Headline()
    assert view.state is not None, "the job is from it"
    return Headline(headline_of_pending(job, view.state), waits_for(job, view.state))


def _queued(job_id: int, view: View) -> QueuedJob | None:
    """The job of this number, as the queue shows it."""
    return next((job for job in (view.state.jobs if view.state else ()) if job.job_id == job_id), None)


def satellite_of(job_id: int, view: View) -> int:
    """The job whose satellite the job `job_id` is; 0: it is none that flexod knows."""
    queued = _queued(job_id, view)
    if queued is None or queued.satellite is None or any(job.job_id == job_id for job in view.unknown):
        return 0
    return queued.satellite.base.job_id


def beyond(headline: Headline, sentences: Iterable[str]) -> tuple[str, ...]:
    """`sentences` without those that say of the job's size no more than the headline does."""
    reason = headline.reason
    return tuple(each for each in sentences if not reason or reason not in (each, each.partition(": ")[2]))


def _brief_reason(shown: JobView, view: View) -> str:
    job = shown.job
    if job.suspended:
        return "suspended"
    if not shown.attached:
        return _without_leader(shown, view)
    if job.pending_command:
        return f"{job.pending_command} is under way"
    briefs = [note.brief for note in view.notes if note.job == job.key and note.brief][-1:]
    start = [
        f"{grant.workers} more start on {grant.node} ({grant.state.value})"
        for grant in job.grants
        if grant.starting
    ]
    # What grants start is the reason; the policy's own is on what the job has beyond that.
    whole = start and job.granted_workers == job.workers.max
    failures = (
        [f"its workers keep failing ({many} in 10 min)"] if (many := view.failures.get(job.key)) else []
    )
    return "; ".join([*start, *failures] if whole else [*start, *failures, *briefs])


def _headline_of(shown: JobView, view: View) -> Headline:
    # nobody knows how many workers train without a leader: what the job has runs on
    has = shown.job.training_workers if shown.attached else shown.job.granted_workers
    size, why = f"{has} of {shown.job.workers} workers", _brief_reason(shown, view)
    return Headline(f"{size}: {why}" if why else size, why)


def reasons(view: View) -> dict[JobKey, list[str]]:
    """Why jobs have no more workers, by job: the policy's words; without a leader, those of the headline."""
    found: dict[JobKey, list[str]] = {}
    for note in view.notes:
        found.setdefault(note.job, []).append(note.text)
    for shown in view.jobs:
        if not shown.attached and not shown.job.suspended:
            found[shown.job.key] = [_headline_of(shown, view).text]
    return found


def _without_leader(shown: JobView, view: View) -> str:
    """Why flexod gives nothing to a job whose leader is not connected."""
    now = view.state.at if view.state else 0.0
    if shown.begins(now):
        return "it starts, and has not begun to train"
    since = shown.job.leaderless_since or shown.started_at
    # whoever has satellites had a leader
    advice = "" if shown.job.grants else ": does its script call flexo run?"
    return f"its leader has not been connected for {duration(max(0.0, now - since))}{advice}"


def _explain_running(shown: JobView, view: View) -> tuple[str, ...]:
    job = shown.job
    parts = [f"{job.base_workers} in its base on {', '.join(job.base_nodes)}"]
    parts += [f"{grant.workers} on {grant.node} ({_kind(grant)}{grant.state.value})" for grant in job.grants]
    does = "pauses" if job.paused else f"trains with {job.training_workers}"
    kind = "opportunistic job" if job.opportunistic else "job"
    sentences = [f"{kind} {job.key} ({job.user}) of {job.workers} workers {does}: {'; '.join(parts)}"]
    notes = [note.text for note in view.notes if note.job == job.key]
    if job.suspended:
        sentences[0] = f"job {job.key} ({job.user}) is suspended: {'; '.join(parts)}"
        return (*sentences, *notes, *_on_loan(job, view))
    if not shown.attached:
        sentences[0] = f"job {job.key} ({job.user}) may have {job.workers} workers: {'; '.join(parts)}"
        sentences.append(_without_leader(shown, view))
        sentences.append("without a leader flexod can give it nothing; what it has runs on")
        return (*sentences, *_on_loan(job, view))
    if shown.silent_since and view.state is not None:
        sentences.append(silent_for(view.state.at - shown.silent_since))
    if many := view.failures.get(job.key):
        logs = f"flexo logs {job.key.job_id}"
        sentences.append(f"{many} of its workers failed in 10 min and were started again: look at `{logs}`")
    sentences += _how_far(shown)
    if shown.batch:
        sentences.append(f"its batch is {shown.batch} samples a step, of {job.batch} that it accepts")
    if shown.by_batch is not None:
        sentences.append(_forecast(shown.by_batch, job.training_workers, job.workers))
    if shown.scaling:
        sentences.append(profile(shown.scaling))
        sentences += _efficiency(shown)
    if job.heterogeneous:
        sentences.append("it is heterogeneous: its workers may be on several GPU types in the same run")
    sentences += [_shared(pair, job.key) for pair in view.pairs if job.key in (pair.holder, pair.guest)]
    sentences += _aggregation(job, view)
    sentences += _on_loan(job, view)
    return (*sentences, *notes)


def _kind(grant: Grant) -> str:
    return "on shared GPUs, " if grant.shared_gpus else ""


def _shared(pair: Pair, key: JobKey) -> str:
    """A sentence on a GPU that the job `key` holds or uses."""
    use, where = pair.use, f"GPU {pair.use.gpu} of {pair.use.node}"
    busy = f"{use.utilization:.0%} busy"
    if pair.guest is None:
        return f"it lets an opportunistic job use {where}, which is {busy}; none does now"
    cost = f"costs its holder {use.slowdown:.1%} a step"
    works = f"works {use.opportunistic_share:.0%} of the time"
    if key == pair.holder:
        return f"job {pair.guest} uses {where} as well, which is {busy}: it {works} and {cost}"
    return f"it uses {where}, which job {pair.holder} keeps {busy}: it {works} and {cost}"


def _aggregation(job: ElasticJob, view: View) -> list[str]:
    """Sentences on who sums the job's gradients, and why."""
    use, pooled = job.aggregation, view.pooled(job.key)
    placement = use.placement if use is not None else None
    if pooled is not None:
        chosen = (
            [f"flexod has chosen the pool for it (--aggregators=auto): {placement.why}"] if placement else []
        )
        return [*_pooled(pooled, view), *chosen]
    if use is None:
        return []
    own = "the Aggregators of its own nodes sum its gradients"
    if use.wants_pool:
        return [f"{own}: it asks for a pool, and flexod has none ([aggregation] enabled)"]
    if not use.satellites:
        why = f"auto): {placement.why}" if placement else "own)"
        return [f"{own} (--aggregators={why}"]
    grants = job.aggregators.grants
    sums = any(grant.state is SatelliteState.TRAINING for grant in grants)
    who = "Aggregators in its own satellites sum its gradients" if sums else f"{own} for now"
    where = ", ".join(sorted(map(_where_it_sums, grants))) or "none"
    option, why = ("auto", f"; {placement.why}") if placement else ("satellites", "")
    return [f"{who} (--aggregators={option}): it asks for {use.satellites}, and has {where}{why}"]


def _where_it_sums(grant: Grant) -> str:
    """``t3 (sums)``, ``t3 (pending)``."""
    return f"{grant.node} ({'sums' if grant.state is SatelliteState.TRAINING else grant.state.value})"


def _pooled(pooled: PooledJobView, view: View) -> list[str]:
    """Sentences on the job's pool Aggregators, and what sharing them costs the job."""
    if not pooled.aggregators:
        return [f"its own Aggregators sum its gradients ({pooled.state}): {pooled.why}"]
    total = sum(each.share for each in pooled.aggregators)
    shares = ", ".join(
        f"{each.name} ({_place_of(each.name, view)}{each.share / total:.0%})" for each in pooled.aggregators
    )
    told = [f"pool Aggregators sum its gradients (it {pooled.state}): {shares}; {pooled.why}"]
    if pooled.alone_s and pooled.now_s:
        cost = f"{pooled.loss:.1%} of its speed" if pooled.loss else "no speed"
        told.append(
            f"sharing costs it {cost}: an iteration takes {pooled.now_s:.3g} s now,"
            f" and took {pooled.alone_s:.3g} s before"
        )
    return told


def _place_of(name: str, view: View) -> str:
    """``job 12 on c1, ``: where a pool Aggregator runs, as far as the queue confirms it."""
    known = view.aggregator(name)
    if known is None or not known.cluster_job:
        return ""
    return f"job {known.cluster_job} on {known.node}, " if known.node else f"job {known.cluster_job}, "


def _on_loan(job: ElasticJob, view: View) -> list[str]:
    """Sentences on the job's nodes that are on loan, and on the deadlines of reclaimed ones."""
    its = {*job.base_nodes, *(grant.node for grant in job.grants)}
    loans = [loan for loan in (view.loans.loans if view.loans else ()) if loan.node in its]
    lent = [loan.node for loan in loans if not loan.closed]
    told = [f"on loan from the inference cluster: {', '.join(lent)}"] if lent else []
    now = view.state.at if view.state else 0.0
    for loan in loans:
        if loan.closed and loan.deadline_at is not None:
            left = f"within {duration(max(0.0, loan.deadline_at - now))}"
            told.append(
                f"{loan.node} is called back ({loan.state.value}) and to be empty {left}: {loan.why_back}"
            )
    return told


def _how_far(shown: JobView) -> list[str]:
    told = [f"it is {shown.progress:.0%} through its training, says its leader"] if shown.progress else []
    if shown.left is None:
        return told
    size = workers(shown.job.training_workers)
    return [*told, f"with {size} it goes on for {duration(shown.left.seconds)}, {_BY[shown.left.source]}"]


def _forecast(times: RunTimes, now: int, allowed: Range) -> str:
    """A sentence on the rest of the training by batch: with the fewest workers that can take the batch, which
    is the worst case (IBM, section V-A), with those of now, and with the most."""
    told = "; ".join(_times_with(times, batch, now, allowed) for batch in times.batches())
    return f"the rest of its training by batch, by its trials, {_BY[times.source]}: {told}"


def _times_with(times: RunTimes, batch: int, now: int, allowed: Range) -> str:
    """``64 samples 5.2 h with 1 worker, 2.1 h with 4 workers``."""
    fewest = times.fewest(batch, allowed)
    if not fewest:
        return f"{batch} samples do not fit {workers(allowed.max)}"
    sizes = sorted({fewest, now, allowed.max} - {0})
    told = {size: times.seconds(batch, size) for size in sizes}
    each = (f"{duration(took)} with {workers(size)}" for size, took in told.items() if math.isfinite(took))
    return f"{batch} samples {', '.join(each)}"


def profile(points: Sequence[ScalingPoint]) -> str:
    """``its profile: 2 workers 90.1 samples/s (efficiency 1.00), 4 workers ...``."""
    told = [
        f"{workers(point.workers)} {_speed(point)} (efficiency {point.efficiency:.2f})"
        for point in points[:_POINTS]
    ]
    more = len(points) - len(told)
    return "its profile: " + ", ".join([*told, *([f"and {more} more sizes"] if more else [])])


def _efficiency(shown: JobView) -> list[str]:
    """The job's efficiency as Amoeba defines it, by the profile: at its present size and at its maximum."""
    speed, now, most = speed_of(shown.scaling), shown.job.training_workers, shown.job.workers.max
    if speed is None or not now:
        return []
    measured = {point.workers for point in shown.scaling}
    # between measured sizes and beyond them, the throughput per GPU has no peak
    sizes = efficiencies({size: speed.rate(size, 1) for size in {1, now, most, *measured}})
    told = [
        f"{sizes[size]:.2f} with {workers(size)}{'' if size in measured else ', which is estimated'}"
        for size in dict.fromkeys((now, most))
    ]
    return [f"its efficiency is {' and '.join(told)}"]


def _speed(point: ScalingPoint) -> str:
    if point.samples_per_s:
        return f"{point.samples_per_s:.4g} samples/s"
    return f"{point.step_s:.3g} s a step"
