"""The results of the demo of lending: figures from Slurm's view, a file, a table, and sentences.

Slurm's view and the jobs' own records show when servers became empty, and how long jobs waited. Only the
deadlines come from flexod.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from flexo_demos.elastic.report import CheckedSentence
from flexo_demos.loans.book import LoanHistory, Returned
from flexo_demos.loans.looks import BASE, IDLE, SATELLITES, Look

LONGER_THAN_IDLE_S = 5.0
"""Seconds that an inference job may wait longer if its server is lent to satellites alone."""
BY_SLURM_ALONE_S = 20.0 + 30.0 + 10.0 + 5.0
"""The longest preemption by Slurm alone in the lab: GraceTime, 30 s, KillWait, and the end of the processes.

The end of the job's processes takes the place of an epilog.
"""
_SLACK_S = 1.0
"""Time between two polls: a poll may show an event this much late."""


@dataclass(frozen=True, slots=True)
class InferenceJob:
    """One server of traffic. `started_at` is the time that the job's own script writes first."""

    job_id: int
    submitted_at: float
    started_at: float | None = None
    """Time of the start; None if the job never ran because its traffic had gone before."""
    server: str = ""
    found: str = ""
    """Holder of the job's server at the job's submission: a constant of looks.py."""
    found_lent: bool = False
    """True if the server was in the borrowed partition then, even if idle."""

    @property
    def wait_s(self) -> float | None:
        """Seconds from submission to start; None if the job never ran."""
        return None if self.started_at is None else round(self.started_at - self.submitted_at, 2)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A server that training used and inference got back."""

    server: str
    demanded_at: float
    """Time at which flexod reclaimed the server or its inference job was submitted, whichever was first."""
    empty_at: float
    deadline_at: float | None
    """flexod's deadline; None if Slurm alone took the server back."""
    had_base: bool

    @property
    def seconds(self) -> float:
        """Seconds from the demand until the server was empty."""
        return round(self.empty_at - self.demanded_at, 1)

    @property
    def missed(self) -> bool:
        """True if the server was not empty by its deadline."""
        return self.deadline_at is not None and self.empty_at > self.deadline_at + _SLACK_S


@dataclass(frozen=True, slots=True)
class Found:
    """All results. `failure` says why the story ended early; "" if it did not."""

    slurm_version: str
    duration_s: float
    servers: int
    gpus_per_server: int
    loans: int
    reclaims: tuple[Reclaim, ...]
    inference: tuple[InferenceJob, ...]
    bases_preempted: int
    bases_preempted_needlessly: int
    """Preemptions of bases although enough other lent servers, not being reclaimed, held satellites alone."""
    satellites_scaled_in: int
    sizes: tuple[int, ...]
    """Numbers of workers of the elastic job, in order."""
    resizes_unclean: int
    lent_gpu_s: float
    """GPU seconds that training had on lent servers."""
    failure: str = ""
    idle_wait_s: float | None = field(init=False)
    """Median wait of inference jobs on idle servers that were not lent."""

    def __post_init__(self) -> None:
        waits = [job.wait_s for job in self.inference if job.found == IDLE and not job.found_lent]
        known = [wait for wait in waits if wait is not None]
        object.__setattr__(self, "idle_wait_s", round(median(known), 2) if known else None)

    def delayed_s(self, *found: str) -> tuple[float, ...]:
        """Extra wait, compared with an idle server, of each job whose server had a holder in `found`."""
        idle = self.idle_wait_s or 0.0
        return tuple(
            round(job.wait_s - idle, 2)
            for job in self.inference
            if job.found in found and job.wait_s is not None
        )

    @property
    def deadline_missed(self) -> int:
        """Servers that were not empty by their deadline."""
        return sum(reclaim.missed for reclaim in self.reclaims)


def reclaims_of(
    looks: Sequence[Look], jobs: Iterable[InferenceJob], book: LoanHistory
) -> tuple[Reclaim, ...]:
    """The reclaims of servers on which training ran."""
    found = []
    for loan in book.returned:
        demanded_at = _demanded_at(loan, jobs)
        during = [look for look in looks if loan.since_at <= look.at <= loan.empty_at + _SLACK_S]
        before = [look for look in during if look.at <= demanded_at]
        if not any(look.trains_on(loan.node) for look in before[-3:]):
            continue  # the server was empty when it was demanded
        empty_at = next(
            (look.at for look in looks if look.at > demanded_at and not look.trains_on(loan.node)),
            loan.empty_at,
        )
        had_base = any(look.on(loan.node) == BASE for look in before[-3:])
        found.append(Reclaim(loan.node, demanded_at, empty_at, loan.deadline_at, had_base))
    return tuple(found)


def _demanded_at(loan: Returned, jobs: Iterable[InferenceJob]) -> float:
    called_at = loan.empty_at if loan.called_back_at is None else loan.called_back_at
    submitted = [
        job.submitted_at
        for job in jobs
        if job.server == loan.node
        and job.started_at is not None
        and loan.since_at <= job.submitted_at <= loan.empty_at
    ]
    return min([called_at, *submitted])


def preemptions(looks: Sequence[Look], books: Sequence[tuple[float, LoanHistory]]) -> tuple[int, int]:
    """Pair (preempted bases, needless ones: scaling in elsewhere would have been enough).

    Scaling in was enough if at least one server and as many as waiting inference jobs had satellites alone.
    """
    total = needless = 0
    for before, after in pairwise(looks):
        if after.restarts <= before.restarts:
            continue
        total += after.restarts - before.restarts
        closed = next((book.closed for at, book in reversed(books) if at <= before.at), frozenset())
        instead = sum(before.on(server) == SATELLITES for server in before.lent - closed)
        if instead >= max(1, before.waiting):
            needless += 1
    return total, needless


def scaled_in(looks: Sequence[Look]) -> int:
    """Number of satellites that have left a lent server while their job went on."""
    if not looks:
        return 0
    there = {
        job.job_id
        for look in looks
        for job in look.jobs
        if job.satellite and any(node in look.lent for node, _ in job.gpus)
    }
    return len(there - {job.job_id for job in looks[-1].jobs if job.runs})


def lent_gpu_seconds(looks: Sequence[Look], servers: Sequence[str]) -> float:
    """GPU seconds that training had on `servers`."""
    return round(
        sum(before.gpus_lent_in_use(servers) * (after.at - before.at) for before, after in pairwise(looks)),
        1,
    )


def claims(found: Found) -> tuple[CheckedSentence, ...]:
    """The sentences that must all hold if the demo succeeds."""
    if found.failure:
        return (CheckedSentence(found.failure, False),)
    return (
        _lent(found),
        _taken_back(found),
        _grew(found),
        _scaled_in(found),
        _preempted(found),
        *_waited(found),
    )


def _lent(found: Found) -> CheckedSentence:
    text = (
        f"Servers were lent {found.loans} times; training used them for {found.lent_gpu_s:.0f} GPU seconds."
    )
    return CheckedSentence(text, found.loans > 0 and found.lent_gpu_s > 0)


def _taken_back(found: Found) -> CheckedSentence:
    with_base = sum(reclaim.had_base for reclaim in found.reclaims)
    return CheckedSentence(
        f"Training left servers that were wanted back {len(found.reclaims)} times, {with_base} of them with "
        f"a base; {found.deadline_missed} deadlines were missed.",
        len(found.reclaims) > 0 and found.deadline_missed == 0,
    )


def _grew(found: Found) -> CheckedSentence:
    most = max(found.sizes, default=0)
    return CheckedSentence(f"The elastic job trained with up to {most} workers.", most > 1)


def _scaled_in(found: Found) -> CheckedSentence:
    return CheckedSentence(
        f"{found.satellites_scaled_in} satellites left lent servers while their job trained on; "
        f"{found.resizes_unclean} changes of its workers were not at a batch's boundary.",
        found.satellites_scaled_in > 0 and found.resizes_unclean == 0,
    )


def _preempted(found: Found) -> CheckedSentence:
    return CheckedSentence(
        f"A base was preempted {found.bases_preempted} times, {found.bases_preempted_needlessly} of them "
        "while scaling in would have been enough.",
        found.bases_preempted_needlessly == 0,
    )


def _waited(found: Found) -> Iterator[CheckedSentence]:
    of_satellites, of_bases = found.delayed_s(SATELLITES), found.delayed_s(BASE)
    worst = max(of_satellites, default=0.0)
    yield CheckedSentence(
        f"Inference jobs on idle servers waited {_seconds(found.idle_wait_s)}; {len(of_satellites)} that "
        f"found theirs lent to satellites alone waited up to {worst:.1f} s longer.",
        len(of_satellites) > 0 and found.idle_wait_s is not None and worst <= LONGER_THAN_IDLE_S,
    )
    worst = max(of_bases, default=0.0)
    yield CheckedSentence(
        f"{len(of_bases)} that came by surprise and found a base on theirs waited up to {worst:.1f} s "
        f"longer; Slurm alone takes {BY_SLURM_ALONE_S:.0f} s at most.",
        len(of_bases) > 0 and worst <= BY_SLURM_ALONE_S,
    )


def table(found: Found) -> tuple[tuple[str, str], ...]:
    """Pairs (name, figure) for the table at the end."""
    return (
        ("Slurm", found.slurm_version or "unknown"),
        ("inference servers", f"{found.servers}, {found.gpus_per_server} GPUs each"),
        ("loans", str(found.loans)),
        ("taken back from training", ", ".join(_told(each) for each in found.reclaims) or "none"),
        ("deadlines missed", str(found.deadline_missed)),
        ("satellites scaled in", str(found.satellites_scaled_in)),
        ("bases preempted", str(found.bases_preempted)),
        ("inference job on an idle server", f"waits {_seconds(found.idle_wait_s)}"),
        ("longer on one lent to satellites", _list(found.delayed_s(SATELLITES))),
        ("longer on one with a base", _list(found.delayed_s(BASE))),
        ("workers of the elastic job", " → ".join(map(str, found.sizes)) or "none"),
        ("GPU seconds on lent servers", f"{found.lent_gpu_s:.0f}"),
        ("the whole story took", f"{found.duration_s:.0f} s"),
    )


def _told(reclaim: Reclaim) -> str:
    return f"{reclaim.server} in {reclaim.seconds:.1f} s{' (a base)' if reclaim.had_base else ''}"


def _list(waits: Sequence[float]) -> str:
    return ", ".join(f"{wait:.1f} s" for wait in waits) or "none was there"


def _seconds(wait: float | None) -> str:
    return "unknown" if wait is None else f"{wait:.1f} s"


def write(found: Found, path: Path) -> None:
    """Write report.json to `path`."""
    document = {
        "loans": found.loans,
        "reclaims": len(found.reclaims),
        "reclaim_s": [reclaim.seconds for reclaim in found.reclaims],
        "deadline_missed": found.deadline_missed,
        "bases_preempted": found.bases_preempted,
        "bases_preempted_needlessly": found.bases_preempted_needlessly,
        "satellites_scaled_in": found.satellites_scaled_in,
        "inference_jobs_delayed_s": found.delayed_s(SATELLITES, BASE),
        "delayed_by_satellites_s": found.delayed_s(SATELLITES),
        "delayed_by_bases_s": found.delayed_s(BASE),
        "idle_wait_s": found.idle_wait_s,
        "lent_gpu_s": found.lent_gpu_s,
        "sizes": found.sizes,
        "resizes_unclean": found.resizes_unclean,
        "slurm_version": found.slurm_version,
        "duration_s": found.duration_s,
        "failure": found.failure,
        "reclaimed": [asdict(reclaim) | {"seconds": reclaim.seconds} for reclaim in found.reclaims],
        "inference_jobs": [asdict(job) | {"wait_s": job.wait_s} for job in found.inference],
        "claims": [asdict(claim) for claim in claims(found)],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
