"""The demo's plot: an elastic job grows, gives way to a rigid job, grows again, and completes.

The story uses only commands that a user types. It polls the cluster's own list of jobs and the workers' logs,
and never calls flexod.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flexo_demos.elastic.cluster import DemoCluster, Servers
from flexo_demos.elastic.measure import Course, course, read_logs
from flexo_demos.elastic.plot import Plot
from flexo_demos.elastic.queue import Look, QueuedJob, node_map, room_for
from flexo_demos.elastic.report import Loan, Rigid
from flexo_demos.elastic.tell import Teller

_LOOK_EVERY_S = 0.5
_GONE_WITHIN_S = 20.0
"""Seconds after the job's end within which its satellites must leave; later ones count as left over."""


class StoryFailed(Exception):
    """An expected event did not happen; the message is a sentence for people."""


def wait_until(teller: Teller, what: str, happened: Callable[[], object], within_s: float) -> None:
    """Poll until `happened`, and tell what is awaited. Raises StoryFailed after `within_s` seconds."""
    teller.now(f"waiting until {what}")
    end = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > end:
            raise StoryFailed(f"In {within_s:.0f} s it did not come to this: {what}.")
        time.sleep(_LOOK_EVERY_S)


@dataclass(slots=True)
class Seen:
    """The demo's observations so far. The report uses them even if the story fails."""

    software: str = ""
    version: str = ""
    elastic_id: int = 0
    submitted_at: float = 0.0
    """Submission of the elastic job, in seconds since the epoch."""
    rigid: Rigid | None = None
    loan: Loan | None = None
    looks: list[Look] = field(default_factory=list)
    satellites_left: int | None = None

    @property
    def elastic_state(self) -> str:
        """The elastic job's state at the last poll."""
        job = self.looks[-1].job(self.elastic_id) if self.looks else None
        return job.state if job else "unknown"

    @property
    def satellites(self) -> frozenset[int]:
        """Ids of all satellites that any poll has shown."""
        return frozenset(job.job_id for look in self.looks for job in look.jobs if job.satellite)


class Story:
    """Plays the plot on a cluster."""

    def __init__(self, cluster: DemoCluster, out: Path, plot: Plot, seen: Seen, teller: Teller) -> None:
        self._cluster, self._out, self._plot, self._seen, self._teller = cluster, out, plot, seen, teller
        self._course: Course | None = None
        self._told_course = False
        self._told_resizes = 0
        self._told_states: dict[int, str] = {}
        self._told_map = ""

    def play(self) -> None:
        """Play from the first submission to the last satellite's end. Raises StoryFailed, LabError."""
        most, servers = self._plot.most_workers, self._cluster.servers
        self._seen.software, self._seen.version = self._cluster.software, self._cluster.version()
        if servers is not None:
            self._seen.loan = Loan(len(servers.nodes))
            servers.want()
            self._teller.say(f"Inference is busy: it has {', '.join(servers.nodes)}")
        self._submit_elastic()
        self._until("the elastic job starts", 30, lambda: self._elastic().runs)
        self._until("its first batch is committed", 90, lambda: self._course is not None)
        self._until(f"it has {most} workers", 90, lambda: self._workers() == most)
        calm_until = self._batches() + self._plot.calm_batches
        self._until("it has trained like that for a while", 60, lambda: self._batches() >= calm_until)
        self._submit_rigid()
        self._until("the rigid job starts", 60, self._rigid_has_started)
        if servers is not None:
            self._lend_and_take_back(servers)
        self._until("the rigid job ends", self._plot.rigid_seconds + 60, lambda: self._rigid().over)
        self._until(f"the elastic job has {most} workers again", 90, lambda: self._workers() == most)
        self._until("the elastic job ends", 240, lambda: self._elastic().over, ends=True)
        self._count_what_is_left()

    def _submit_elastic(self) -> None:
        plot = self._plot
        self._teller.say(f"$ {self._cluster.elastic_command(plot)}", "bold")
        self._teller.show(f"from one worker to {plot.most_workers}; train.py is an elastic Horovod script")
        others = "R the rigid job's" + (", I inference's" if self._cluster.servers else "")
        self._teller.show(f"below: E its own GPUs, e its satellites', {others}, · idle")
        self._seen.submitted_at = time.time()
        self._seen.elastic_id = self._cluster.submit_elastic(plot, self._out)

    def _submit_rigid(self) -> None:
        plot, needed = self._plot, self._plot.gpus_per_node
        room = room_for(self._look(), self._cluster.nodes, needed, needed)
        self._teller.say(f"$ {self._cluster.rigid_command(plot)}", "bold")
        self._teller.show(
            f"it needs {needed} GPUs on each of {plot.rigid_nodes} nodes; nodes with so many idle: {room}"
        )
        shell = f"date +%s.%N > {shlex.quote(str(self._started_file))}; sleep {plot.rigid_seconds}"
        submitted_at = time.time()
        job_id = self._cluster.submit_rigid(plot, self._out, shell)
        self._seen.rigid = Rigid(job_id, plot.rigid_nodes, needed, submitted_at, room, started_at=None)

    @property
    def _started_file(self) -> Path:
        return self._out / "rigid.started"

    def _rigid_has_started(self) -> bool:
        """True if the rigid job's script has written its start: a cluster's own time may be in seconds."""
        if self._seen.rigid is None:
            return False
        with suppress(OSError, ValueError):
            rigid = replace(self._seen.rigid, started_at=float(self._started_file.read_text()))
            self._seen.rigid = rigid
            self._teller.say(
                f"rigid job {rigid.job_id} starts, {rigid.wait_s:.1f} s after its submission", "dark_orange"
            )
            return True
        return False

    def _lend_and_take_back(self, servers: Servers) -> None:
        """The job grows onto an idle inference server, and leaves it when inference asks."""
        self._teller.say("Inference has no traffic: its servers are idle", "magenta")
        servers.leave()
        self._until("a worker trains on a lent server", 60, lambda: self._trains_on(servers))
        loan = Loan(len(servers.nodes), workers=self._on(servers), asked_at=servers.want())
        self._seen.loan = loan
        self._teller.say("Inference has traffic again, and asks for all of its servers", "magenta")
        self._until("inference has its servers", 60, lambda: servers.served_at is not None)
        loan = self._seen.loan = replace(loan, served_at=servers.served_at)
        self._teller.say(f"inference has them, {loan.wait_s:.1f} s after its request", "magenta")

    def _trains_on(self, servers: Servers) -> bool:
        """Whether the job has all of its workers, and some of them on these servers."""
        return bool(self._on(servers)) and self._workers() == self._plot.most_workers

    def _on(self, servers: Servers) -> int:
        """GPUs of these servers that satellites hold: one for each worker."""
        return sum(count for job in self._now.satellites for node, count in job.gpus if node in servers.nodes)

    def _count_what_is_left(self) -> None:
        with suppress(StoryFailed):
            self._until("satellites are gone", _GONE_WITHIN_S, lambda: not self._now.satellites, ends=True)
        self._seen.satellites_left = len(self._now.satellites)

    def _until(self, what: str, limit_s: float, happened: Callable[[], bool], *, ends: bool = False) -> None:
        """Poll until `happened`. `ends`: True if the elastic job may end meanwhile."""
        deadline = time.monotonic() + limit_s
        while True:
            self._look()
            if happened():
                return
            if not ends and self._elastic().over:
                raise StoryFailed(
                    f"The elastic job ended ({self._elastic().state}) before this: {what}. See {self._out}."
                )
            if time.monotonic() > deadline:
                raise StoryFailed(f"Not within {limit_s:.0f} s: {what}.")
            time.sleep(_LOOK_EVERY_S)

    def _look(self) -> Look:
        """Poll the queue and the workers' logs once, and print the changes."""
        look = Look(time.time(), self._cluster.jobs())
        self._seen.looks.append(look)
        self._course = course(read_logs(self._out / "elastic"))
        self._tell(look)
        return look

    @property
    def _now(self) -> Look:
        return self._seen.looks[-1]

    def _elastic(self) -> QueuedJob:
        return self._known(self._seen.elastic_id)

    def _rigid(self) -> QueuedJob:
        return self._known(self._seen.rigid.job_id if self._seen.rigid else 0)

    def _known(self, job_id: int) -> QueuedJob:
        job = self._now.job(job_id)
        if job is None:
            raise StoryFailed(f"{self._cluster.software} does not know job {job_id}.")
        return job

    def _workers(self) -> int:
        return self._course.sizes[-1] if self._course else 0

    def _batches(self) -> int:
        return self._course.steps_done if self._course else 0

    def _tell(self, look: Look) -> None:
        for job in look.jobs:
            if job.state != self._told_states.get(job.job_id):
                self._told_states[job.job_id] = job.state
                self._tell_job(job)
        letters = {self._seen.elastic_id: "E"}
        if self._seen.rigid is not None:
            letters[self._seen.rigid.job_id] = "R"
        nodes = self._cluster.nodes
        if (servers := self._cluster.servers) is not None:
            letters[servers.job_id] = "I"
            nodes += servers.nodes
        drawn = node_map(look, nodes, self._plot.gpus_per_node, letters)
        if drawn != self._told_map:
            self._told_map = drawn
            self._teller.show(drawn)
        if self._course is not None:
            self._tell_course(self._course)

    def _tell_job(self, job: QueuedJob) -> None:
        ended = f"ended ({job.state.lower()})"
        if job.satellite:
            if job.runs:
                what = f"{_count(job.gpus_held, 'idle GPU')} on {job.nodes} for the elastic job"
                self._teller.say(f"satellite {job.job_id} starts: {what}", "blue")
            elif job.over:
                self._teller.say(f"satellite {job.job_id} has {ended}", "blue")
        elif job.job_id == self._seen.elastic_id and (job.runs or job.over):
            self._teller.say(f"elastic job {job.job_id} {'starts' if job.runs else f'has {ended}'}", "bold")
        elif self._seen.rigid is not None and job.job_id == self._seen.rigid.job_id and job.over:
            self._teller.say(f"rigid job {job.job_id} has {ended}", "dark_orange")

    def _tell_course(self, went: Course) -> None:
        if not self._told_course:
            self._told_course = True
            self._teller.say(f"training begins with {_count(went.sizes[0], 'worker')}", "green")
        for resize in went.resizes[self._told_resizes :]:
            self._told_resizes += 1
            change = "grows" if resize.after > resize.before else "shrinks"
            self._teller.say(
                f"training {change} from {resize.before} to {_count(resize.after, 'worker')} after batch "
                f"{resize.last_step + 1}; those who stay stood still for {resize.pause_s:.1f} s",
                "green",
            )
        self._teller.now(f"{_count(went.sizes[-1], 'worker')}, batch {went.steps_done}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
