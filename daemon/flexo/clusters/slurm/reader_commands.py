"""Reads Slurm with its own commands: one process for the nodes, one for the jobs, one for the partitions.

As text and not as JSON, because of what it costs the controller: all of 20,000 jobs take 86 ms under its
lock as text and 6.8 s as JSON (docs/architecture.md, "Reading costs too").

How releases differ in what they print: releases.py.
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
_ONE_BY_ONE = 8
"""Jobs to ask about each by itself: one costs the controller 0.3 ms, any list of jobs as much as all jobs."""


class CommandReader:
    """The Reader that works with every release."""

    def __init__(self, commands: SlurmCommands, satellite_partitions: frozenset[str]) -> None:
        self._commands = commands
        self._satellite_partitions = satellite_partitions
        self._excluded_nodes: dict[int, frozenset[str]] = {}
        self._seen: dict[str, QueuedJob] = {}
        """By what the last look printed: most of a long queue is printed as before, and not read again."""

    @property
    def name(self) -> str:
        """`Slurm's commands`."""
        return "Slurm's commands"

    def look(self) -> tuple[tuple[QueuedJob, ...], tuple[Node, ...]]:
        """All jobs that wait, run or are ending; all nodes, with the GPUs in use (-d), hidden ones too (-a).

        What waits of a job array is one job. Nodes are asked for as soon as slurmctld has told of the jobs,
        while those are printed and read: not earlier, so that GPUs of a job that starts in between are taken,
        and not later, because slurmctld may answer between two stretches of backfill that last for seconds.
        """
        asked: list[Future[tuple[Node, ...]]] = []
        with ThreadPoolExecutor(1) as beside:
            try:
                printed = _understood(lambda: self._queue(lambda: asked.append(beside.submit(self._nodes))))
                return _understood(lambda: self._jobs(printed)), asked[0].result()
            finally:
                asked.clear()  # its error, raised here, would hold this frame, and this frame it: all it read

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
            nodes = self._excluded_nodes.get(job.job_id)
            yield replace(job, excluded_nodes=nodes) if nodes else job

    def _queue(self, answered: Callable[[], None]) -> list[str]:
        names = self._fields
        # In the environment and not in an argument, where every user of this host could read it in time.
        separator = f"|{secrets.token_urlsafe(6)}"
        variables = {"SQUEUE_FORMAT2": format_for(names, separator)}
        output = self._commands.read(*_SQUEUE, "--noconvert", variables=variables, answered=answered)
        return parse_queue(output, names, separator)

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        """What this squeue can print: a new release of Slurm is noticed when flexod starts again."""
        try:
            return fields_to_ask(self._commands.run(("squeue", "--helpFormat"), {}))
        except CommandFailed as failure:
            if "unrecognized option" not in failure.said:
                raise ClusterUnreachable(str(failure)) from failure
            return fields_to_ask("")

    def _learn_excluded_nodes(self, jobs: tuple[QueuedJob, ...]) -> None:
        """Ask for the waiting jobs not known yet, and forget those that wait no more.

        Not for held jobs (of priority 0), which want nothing yet, nor for satellites, of which many may be
        new at once: each names its one node. A tag alone says nothing: its user wrote it.
        """
        waiting = {
            job.job_id
            for job in jobs
            if job.state is JobState.PENDING
            and job.priority
            and not (job.satellite is not None and len(job.required_nodes) == 1)
        }
        known = {job_id: nodes for job_id, nodes in self._excluded_nodes.items() if job_id in waiting}
        new = sorted(waiting - known.keys())
        asked = [f"--jobs={job_id}" for job_id in new] if len(new) <= _ONE_BY_ONE else ["--states=PENDING"]
        for which in asked:
            known |= parse_excluded_nodes(self._excluded_nodes_of(which))
        self._excluded_nodes = {job_id: known.get(job_id, frozenset()) for job_id in waiting}

    def _excluded_nodes_of(self, which: str) -> str:
        try:
            return self._commands.run((*_SQUEUE, which, "--format=%A %x"), {})
        except CommandFailed as failure:
            if "invalid job id" in failure.said.lower():
                return ""  # the one job asked about has ended meanwhile
            raise ClusterUnreachable(str(failure)) from failure


def _understood(parse: Callable[[], T]) -> T:
    """What `parse` makes of Slurm's words. An answer that makes no sense is no answer."""
    try:
        return parse()
    except (BadValue, BadHostlist) as error:
        raise ClusterUnreachable(f"Slurm's answer was not understood: {error}") from error
