"""What must never happen, looked for in what Slurm showed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from chaos.system import bounds
from chaos.system.evidence import Evidence, Strike, Submitted, Violation
from chaos.system.looks import Look, SlurmJob
from chaos.system.plan import GPUS_PER_NODE, INFERENCE_NODES, TRAIN_NODES, Deed, Ordinary, Target

TRAIN = tuple(f"t{number}" for number in range(1, TRAIN_NODES + 1))
SERVERS = tuple(f"i{number}" for number in range(1, INFERENCE_NODES + 1))
_PREEMPTIBLE = frozenset({"flex", "borrowed", "borrowed-flex"})
_NOT_SLURMS_TURN = frozenset({"BeginTime", "Dependency", "JobHeldUser", "JobHeldAdmin"})
_ENDED_BY_OTHERS = frozenset({"PREEMPTED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL"})
_Key = TypeVar("_Key", bound=Hashable)


def lasting(
    looks: Sequence[Look],
    holds: Callable[[Look], Collection[_Key]],
    paused: Callable[[float], bool],
) -> dict[_Key, float]:
    """For how many seconds on end each key held at longest; the clock stands while `paused` (seconds)."""
    longest: dict[_Key, float] = defaultdict(float)
    now: dict[_Key, float] = {}
    for look, following in pairwise(looks):
        gap_s = 0.0 if paused(look.at) else min(following.at - look.at, bounds.LONGEST_GAP_S)
        now = {key: now.get(key, 0.0) + gap_s for key in holds(look)}
        for key, seconds in now.items():
            longest[key] = max(longest[key], seconds)
    return dict(longest)


def disturbed(
    strikes: Sequence[Strike], targets: Collection[Target], after_s: float
) -> Callable[[float], bool]:
    """Whether one of the targets is down at a time, or was until less than `after_s` ago."""
    spans = [(strike.at, strike.until + after_s) for strike in strikes if strike.target in targets]
    return lambda at: any(since <= at <= until for since, until in spans)


# --- GPUs ---------------------------------------------------------------------------------------------------


def no_gpu_is_given_twice(evidence: Evidence) -> Iterator[Violation]:
    """By Slurm's records: every GPU of a node belongs to one running job, and there are no more of them."""
    told: set[str] = set()
    for look in evidence.looks:
        holders: dict[tuple[str, int], list[int]] = defaultdict(list)
        for job in look.jobs:
            for held in job.held if job.runs else ():
                for gpu in held.gpus:
                    holders[held.node, gpu].append(job.job_id)
        for (node, gpu), jobs in holders.items():
            if len(jobs) > 1 or gpu >= GPUS_PER_NODE:
                told.add(f"GPU {gpu} of {node} was held by the jobs {jobs}")
    for what in sorted(told):
        yield Violation("a GPU is given once", what)


def no_grant_is_given_twice(evidence: Evidence) -> Iterator[Violation]:
    """Of one grant, one satellite runs."""
    told: set[str] = set()
    for look in evidence.looks:
        running: dict[str, list[int]] = defaultdict(list)
        for job in look.jobs:
            if job.runs and job.tag:
                running[job.tag.grant].append(job.job_id)
        for grant, jobs in running.items():
            if len(jobs) > 1 and grant not in told:
                told.add(grant)
                yield Violation("a grant is given once", f"satellites {jobs} both run for the grant {grant}")


def nobody_outlives_its_base(evidence: Evidence) -> Iterator[Violation]:
    """A satellite of a base that is over, or was requeued, is gone after a lease's length."""

    def ownerless(look: Look) -> list[int]:
        return [job.job_id for job in look.jobs if job.runs and job.tag and not _owned(job, look)]

    paused = disturbed(evidence.strikes, (Target.SLURMCTLD, Target.SLURMD), bounds.UNDISTURBED_S)
    for job_id, seconds in lasting(evidence.looks, ownerless, paused).items():
        if seconds > bounds.OWNERLESS_S:
            yield Violation(
                "no satellite outlives its base's lease", f"satellite {job_id}: {seconds:.0f} s without one"
            )


def _owned(satellite: SlurmJob, look: Look) -> bool:
    tag = satellite.tag
    base = look.job(tag.base) if tag else None
    return tag is not None and base is not None and base.runs and base.restarts == tag.restart


# --- waiting ------------------------------------------------------------------------------------------------


def waits(evidence: Evidence) -> dict[str, float]:
    """How long each ordinary job waited for what satellites, or bases on lent servers, held. Seconds."""
    paused = disturbed(evidence.strikes, (Target.SLURMCTLD, Target.SLURMD), bounds.UNDISTURBED_S / 3)
    waited: dict[str, float] = {}
    for inference in (True, False):
        jobs = [each for what, each in evidence.ordinary() if what.inference is inference]

        def could_start(look: Look, jobs: list[Submitted] = jobs) -> list[str]:
            return _could_start(look, jobs)

        waited |= lasting(evidence.looks, could_start, paused)
    return waited


def nobody_waits_too_long(evidence: Evidence) -> Iterator[Violation]:
    """A job that outranks satellites gets its nodes, and inference its server, by Slurm alone if need be."""
    for name, seconds in waits(evidence).items():
        if seconds > bounds.TAKEN_BACK_S:
            yield Violation(
                "a job that outranks satellites gets its GPUs in time",
                f"{name} waited {seconds:.0f} s, {bounds.TAKEN_BACK_S:.0f} s are allowed",
            )


def _could_start(look: Look, jobs: Sequence[Submitted]) -> list[str]:
    """Of those that wait, the first: if it would start on a cluster without preemptible jobs."""
    for each in jobs:
        job = look.job(each.job_id)
        if job is None or job.name != each.name or job.state != "PENDING":
            continue
        if job.reason in _NOT_SLURMS_TURN:
            return []
        return [each.name] if isinstance(each.what, Ordinary) and _room(look, each.what) else []
    return []


def _room(look: Look, what: Ordinary) -> bool:
    nodes = ((what.server,) if what.server else SERVERS) if what.inference else TRAIN
    return sum(_free(look, node) >= what.gpus_per_node for node in nodes) >= what.nodes


def _free(look: Look, node: str) -> int:
    """GPUs that nobody holds, but for jobs that may be preempted."""
    firm = [job for job in look.jobs if job.partition not in _PREEMPTIBLE]
    return GPUS_PER_NODE - sum(len(held.gpus) for job in firm for held in job.held if held.node == node)


# --- jobs ---------------------------------------------------------------------------------------------------


def no_job_is_lost(evidence: Evidence) -> Iterator[Violation]:
    """Every job that Slurm has accepted is there in the end, and has ended with 0."""
    last = evidence.looks[-1]
    for each in evidence.submitted:
        job = last.job(each.job_id)
        if job is None or job.name != each.name:
            if not _killed_after(each.at, evidence.strikes):
                yield Violation("no job is lost", f"Slurm does not know {each.name} ({each.job_id}) any more")
        elif end_is_forgotten(each.job_id, evidence.ordinary_ends, evidence.strikes):
            continue
        elif not job.over:
            yield Violation(
                "no job is lost", f"{each.name} ({each.job_id}) has not ended: {job.state} {job.reason}"
            )
        elif (job.state, job.exit_code) != ("COMPLETED", "0:0"):
            yield Violation(
                "every job ends with 0", f"{each.name} ({each.job_id}): {job.state}, {job.exit_code}"
            )


def end_is_forgotten(job_id: int, ends: Mapping[int, float], strikes: Sequence[Strike]) -> bool:
    """The job's script has ended, and slurmctld was killed before it had written that down.

    The slurmctld after it shows such a job as running, and nothing will ever end it but `scancel`.
    """
    return job_id in ends and _killed_after(ends[job_id], strikes)


def _killed_after(at: float, strikes: Sequence[Strike]) -> bool:
    """slurmctld was killed so soon after this time (seconds since the epoch) that it may not know of it."""
    kills = [each.at for each in strikes if each.target is Target.SLURMCTLD and each.deed is Deed.KILL]
    return any(0 <= kill - at <= bounds.SLURM_FORGETS_S for kill in kills)


def no_base_is_taken(evidence: Evidence) -> Iterator[Violation]:
    """A base is neither preempted nor requeued; a fungible one only from a server that inference wants."""
    for what, each in evidence.elastic():
        restarts = 0
        for look in evidence.looks:
            job = look.job(each.job_id)
            if job is None or job.name != each.name:
                continue
            if job.restarts > restarts and not (what.fungible and _wanted(evidence, look.at)):
                yield Violation(
                    "no base is taken", f"{each.name} ({each.job_id}) was requeued at {look.at:.1f}"
                )
            restarts = max(restarts, job.restarts)
            if job.state in _ENDED_BY_OTHERS and not (what.fungible and _wanted(evidence, look.at)):
                yield Violation("no base is taken", f"{each.name} ({each.job_id}) is {job.state}")
                break


def _wanted(evidence: Evidence, at: float) -> bool:
    """Whether inference asked for a server a short while ago, or had not got one by then."""
    inference = [each for what, each in evidence.ordinary() if what.inference]
    if any(0 <= at - each.at <= bounds.WANTED_S for each in inference):
        return True
    ids = {each.job_id for each in inference}
    recent = [look for look in evidence.looks if at - bounds.WANTED_S <= look.at <= at]
    return any(job.job_id in ids and job.state == "PENDING" for look in recent for job in look.jobs)


# --- loans --------------------------------------------------------------------------------------------------


def only_servers_are_borrowed(evidence: Evidence) -> Iterator[Violation]:
    """Nothing but inference servers is ever in the partitions of lent ones."""
    strange = set[str]().union(*(look.borrowed for look in evidence.looks)) - set(SERVERS)
    if strange:
        yield Violation(
            "only inference servers are lent", f"{sorted(strange)} were in the borrowed partition"
        )


def no_server_in_use_stays_borrowed(evidence: Evidence) -> Iterator[Violation]:
    """Where inference runs again the loan ends: nothing else is let onto that server."""
    inference = {(each.job_id, each.name) for what, each in evidence.ordinary() if what.inference}

    def still_lent(look: Look) -> set[str]:
        running = [job for job in look.jobs if (job.job_id, job.name) in inference and job.runs]
        return {held.node for job in running for held in job.held} & look.borrowed

    targets = (Target.FLEXOD, Target.SLURMCTLD, Target.SLURM_LINK)
    paused = disturbed(evidence.strikes, targets, bounds.UNDISTURBED_S)
    for server, seconds in lasting(evidence.looks, still_lent, paused).items():
        if seconds > bounds.CLOSED_S:
            yield Violation(
                "a server that is back is no longer lent", f"{server}: {seconds:.0f} s after inference began"
            )
