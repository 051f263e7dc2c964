"""Reads Slurm with its own commands: one process for the nodes, one for the jobs, one for the partitions.

The reader asks for text and not for JSON, because JSON costs the controller more. All of 20,000 jobs take 86
ms under its lock as text and 6.8 s as JSON (docs/explanation/architecture.md, "Reading costs too").

releases.py says how the output differs between releases.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.commands import CommandFailed, SlurmCommands
from flexo.clusters.slurm.hostlist import BadHostlist
from flexo.clusters.slurm.parse_jobs import (
    EXCLUDED_NODES,
    QueueRecord,
    fields_to_ask,
    format_for,
    parse_excluded_nodes,
    parse_queue,
    readable,
    to_job,
    to_record,
)
from flexo.clusters.slurm.parse_nodes import parse_nodes, parse_partitions
from flexo.clusters.slurm.text import BadValue, number
from flexo.model.nodes import Node, Partition
from flexo.model.queue import JobState, QueuedJob

T = TypeVar("T")

_SQUEUE = ("squeue", "--all", "--local", "--noheader")
_PENDING, _PENDING_OR_STARTED = "--states=PENDING", "--states=PENDING,RUNNING,SUSPENDED"
_Asked = tuple[int, bool]
"""A job about which the reader asks, and whether the job waits."""
ONE_BY_ONE = 8
"""The most jobs that are asked about one by one. One costs the controller 0.3 ms, any list of jobs as much as
all jobs."""


class CommandReader:
    """The Reader that works with every release."""

    def __init__(self, commands: SlurmCommands, satellite_partitions: frozenset[str]) -> None:
        self._commands = commands
        self._satellite_partitions = satellite_partitions
        self._excluded_nodes: dict[_Asked, frozenset[str]] = {}
        self._seen: dict[str, QueuedJob] = {}
        """The jobs of the last poll, by their printed text. Most of a long queue is printed as before, and
        not parsed again."""

    @property
    def name(self) -> str:
        """The name of this reader: `Slurm's commands`."""
        return "Slurm's commands"

    def look(self) -> tuple[tuple[QueuedJob, ...], tuple[Node, ...]]:
        """All jobs that wait, run or are ending; all nodes, with the GPUs in use (-d), hidden ones too (-a).

        The waiting part of a job array is one job. The reader asks for nodes as soon as slurmctld has sent
        the jobs, while squeue prints the jobs and flexod parses them. If it asked earlier, GPUs of a job that
        starts in between would count as free. If it asked later, slurmctld might answer between two stretches
        of backfill, which last for seconds.
        """
        asked: list[Future[tuple[Node, ...]]] = []
        with ThreadPoolExecutor(1) as beside:
            try:
                printed = _understood(lambda: self._queue(lambda: asked.append(beside.submit(self._nodes))))
                return _understood(lambda: self._jobs(printed)), asked[0].result()
            finally:
                asked.clear()  # else its error and this frame would hold each other, and all it read

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones too."""
        output = self._commands.read("scontrol", "show", "partition", "-a", "-o")
        return _understood(lambda: parse_partitions(output))

    def _nodes(self) -> tuple[Node, ...]:
        output = self._commands.read("scontrol", "show", "node", "-a", "-d", "-o")
        return _understood(lambda: parse_nodes(output))

    def _jobs(self, printed: list[str]) -> tuple[QueuedJob, ...]:
        seen = self._seen
        self._seen = {one: seen.get(one) or self._job(to_record(one)) for one in printed}
        jobs = tuple(self._seen.values())
        return jobs if EXCLUDED_NODES in self._fields else tuple(self._with_excluded_nodes(jobs))

    def _job(self, record: QueueRecord) -> QueuedJob:
        return readable(number(record.job_id), lambda: to_job(record, self._satellite_partitions))

    def _with_excluded_nodes(self, jobs: tuple[QueuedJob, ...]) -> Iterator[QueuedJob]:
        self._learn_excluded_nodes(jobs)
        for job in jobs:
            nodes = self._excluded_nodes.get(_asked(job))
            yield replace(job, excluded_nodes=nodes) if nodes else job

    def _queue(self, answered: Callable[[], None]) -> list[str]:
        names = self._fields
        # The environment has the separator: every user of this host could read an argument in time.
        separator = f"|{secrets.token_urlsafe(6)}"
        variables = {"SQUEUE_FORMAT2": format_for(names, separator)}
        output = self._commands.read(*_SQUEUE, "--noconvert", variables=variables, answered=answered)
        return parse_queue(output, names, separator)

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        """The fields that this squeue can print. flexod notices a new release of Slurm only when it starts
        again."""
        try:
            return fields_to_ask(self._commands.run(("squeue", "--helpFormat"), {}))
        except CommandFailed as failure:
            if "unrecognized option" not in failure.said:
                raise ClusterUnreachable(str(failure)) from failure
            return fields_to_ask("")

    def _learn_excluded_nodes(self, jobs: tuple[QueuedJob, ...]) -> None:
        """Ask for the excluded nodes of jobs for which they matter anew, and forget the others.

        They matter while a job waits. They matter for an elastic job that runs, too: its user may have
        changed them until it started, so the reader asks once more.
        """
        wanted = {_asked(job) for job in jobs if _excluded_nodes_matter(job)}
        known = {asked: nodes for asked, nodes in self._excluded_nodes.items() if asked in wanted}
        new = sorted(wanted - known.keys())
        which = [f"--jobs={job_id}" for job_id, _ in new]
        if len(new) > ONE_BY_ONE:
            which = [_PENDING if all(waits for _, waits in new) else _PENDING_OR_STARTED]
        found: dict[int, frozenset[str]] = {}
        for jobs_asked in which:
            found |= parse_excluded_nodes(self._excluded_nodes_of(jobs_asked))
        self._excluded_nodes = known | {asked: found.get(asked[0], frozenset()) for asked in new}

    def _excluded_nodes_of(self, which: str) -> str:
        try:
            return self._commands.run((*_SQUEUE, which, "--format=%A %x"), {})
        except CommandFailed as failure:
            if "invalid job id" in failure.said.lower():
                return ""  # the one job asked about has ended meanwhile
            raise ClusterUnreachable(str(failure)) from failure


def _asked(job: QueuedJob) -> _Asked:
    return job.job_id, job.state is JobState.PENDING


def _excluded_nodes_matter(job: QueuedJob) -> bool:
    """Whether the nodes that a job excludes can matter.

    A held job (of priority 0) cannot start yet. A satellite that names its one node excludes no other, and
    many may be new at once. Its tag alone says nothing, because its user wrote it.
    """
    if job.state is JobState.PENDING:
        return bool(job.priority) and not (job.satellite is not None and len(job.required_nodes) == 1)
    return job.elastic is not None and job.state in (JobState.RUNNING, JobState.SUSPENDED)


def _understood(parse: Callable[[], T]) -> T:
    """The result of `parse` for Slurm's answer. An answer that makes no sense raises ClusterUnreachable."""
    try:
        return parse()
    except (BadValue, BadHostlist) as error:
        raise ClusterUnreachable(f"Slurm's answer was not understood: {error}") from error
