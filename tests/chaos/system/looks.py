"""What Slurm shows of the cluster, look after look, as lines of JSON. Pure.

Only Slurm's own words are read (`scontrol -d show job`, `scontrol show partition`): flexod is not asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from flexo.clusters.slurm.hostlist import expand

RUNS = frozenset({"RUNNING"})
HOLDS = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"})
WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_TAG = re.compile(r"flexo-satellite base=(\d+) restart=(\d+) grant=(\S+) workers=(\d+)")
_BORROWED = ("borrowed", "borrowed-flex")


@dataclass(frozen=True, slots=True)
class Tag:
    """What a satellite says of itself in its Comment."""

    base: int
    restart: int
    grant: str


@dataclass(frozen=True, slots=True)
class Held:
    """GPUs of one node, by their numbers."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm has it at one moment; ended ones stay in its list for an hour."""

    job_id: int
    name: str
    state: str
    reason: str
    partition: str
    restarts: int
    exit_code: str
    held: tuple[Held, ...] = ()
    tag: Tag | None = None

    @property
    def runs(self) -> bool:
        """It has started and not ended."""
        return self.state in RUNS

    @property
    def not_launched(self) -> bool:
        """Slurm holds it because its node would not launch it."""
        return self.state in WAITS and self.reason == "launch_failed_requeued_held"

    @property
    def over(self) -> bool:
        """Slurm has nothing left to do for it."""
        return self.state not in HOLDS | WAITS


@dataclass(frozen=True, slots=True)
class Look:
    """One moment; `at` in seconds since the epoch."""

    at: float
    jobs: tuple[SlurmJob, ...]
    borrowed: frozenset[str]
    """Nodes in a partition of lent servers."""

    def job(self, job_id: int) -> SlurmJob | None:
        """The job of that number, if Slurm knows it."""
        return next((job for job in self.jobs if job.job_id == job_id), None)


def parse(at: float, jobs: str, partitions: str) -> Look:
    """A look from what both commands print. Raises ValueError for a job that lacks what every job has."""
    records = (record for record in re.split(r"\n\s*\n", jobs) if "JobId=" in record)
    borrowed: set[str] = set()
    for line in partitions.splitlines():
        if _field(line, "PartitionName") in _BORROWED and (nodes := _field(line, "Nodes")) not in (
            "",
            "(null)",
        ):
            borrowed.update(expand(nodes))
    return Look(at, tuple(_job(record) for record in records), frozenset(borrowed))


def to_line(look: Look) -> str:
    """One line of the observer's file."""
    return json.dumps(asdict(look) | {"borrowed": sorted(look.borrowed)}) + "\n"


def from_lines(text: str) -> tuple[Look, ...]:
    """The inverse, for a whole file; a torn line and moments at which Slurm did not answer are left out."""
    lines = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    return tuple(_look(line) for line in lines if "blind" not in line)


def latest(text: str) -> Look | None:
    """The last moment of a file at which Slurm answered."""
    for line in reversed(text[: text.rfind("\n") + 1].splitlines()):
        if looks := from_lines(line + "\n"):
            return looks[0]
    return None


def _look(line: dict[str, Any]) -> Look:
    return Look(line["at"], tuple(_read_job(job) for job in line["jobs"]), frozenset(line["borrowed"]))


def _read_job(fields: dict[str, Any]) -> SlurmJob:
    held = tuple(Held(each["node"], tuple(each["gpus"])) for each in fields.pop("held"))
    tag = fields.pop("tag")
    return SlurmJob(**fields, held=held, tag=Tag(**tag) if tag else None)


def _job(record: str) -> SlurmJob:
    state = _field(record, "JobState")
    return SlurmJob(
        job_id=int(_field(record, "JobId")),
        name=_field(record, "JobName"),
        state=state,
        reason=_field(record, "Reason"),
        partition=_field(record, "Partition"),
        restarts=int(_field(record, "Restarts") or 0),
        exit_code=_field(record, "ExitCode"),
        held=tuple(_held(record)) if state in HOLDS else (),
        tag=_tag(record),
    )


def _field(record: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", record)
    return match[1] if match else ""


def _tag(record: str) -> Tag | None:
    comment = re.search(r"^\s*Comment=(.*)$", record, re.MULTILINE)
    match = _TAG.fullmatch(comment[1].strip()) if comment else None
    return Tag(int(match[1]), int(match[2]), match[3]) if match else None


def _held(record: str) -> Iterator[Held]:
    """Lines such as `Nodes=t[2-3] CPU_IDs=0 Mem=4000 GRES=gpu:2(IDX:0-1)`."""
    for names, gres in re.findall(r"^\s*Nodes=(\S+) .*GRES=(\S*)", record, re.MULTILINE):
        numbers = [
            number for text in re.findall(r"gpu[^(]*\(IDX:([0-9,-]+)\)", gres) for number in _numbers(text)
        ]
        for name in expand(names) if numbers else ():
            yield Held(name, tuple(numbers))


def _numbers(text: str) -> Iterator[int]:
    """`0-1,3` -> 0, 1, 3."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
