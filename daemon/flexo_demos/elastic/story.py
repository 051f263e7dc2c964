"""The demo's plot: an elastic job grows, gives way to a rigid job, grows again, and completes.

The story uses only commands that a user types. It polls Slurm's queue and the workers' logs, and never calls
flexod.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flexo_demos.elastic.measure import Course, course, read_logs
from flexo_demos.elastic.queue import Look, QueuedJob, node_map, parse_jobs, room_for
from flexo_demos.elastic.report import Rigid
from flexo_demos.elastic.tell import Teller
from flexo_lab import Lab

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "digits"
_LOOK_EVERY_S = 0.5
_GONE_WITHIN_S = 20.0
"""Seconds after the job's end within which its satellites must leave; later ones count as left over."""


class StoryFailed(Exception):
    """An expected event did not happen; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Sizes of the story. The rigid job fills all nodes but one, so it needs GPUs that satellites hold."""

    nodes: int = 3
    gpus_per_node: int = 3
    most_workers: int = 4
    epochs: int = 30
    batch: int = 48
    step_seconds: float = 0.1
    """Pause in each step that stands for the GPUs' work. Without it the job would end within two polls."""
    rigid_seconds: int = 20
    calm_batches: int = 60
    """Number of batches at full size before the rigid job is submitted."""


@dataclass(slots=True)
class Seen:
    """The demo's observations so far. The report uses them even if the story fails."""

    slurm_version: str = ""
    elastic_id: int = 0
    submitted_at: float = 0.0
    """Submission of the elastic job, in seconds since the epoch."""
    rigid: Rigid | None = None
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
    """Plays the plot on a lab."""

    def __init__(self, lab: Lab, out: Path, plot: Plot, seen: Seen, teller: Teller) -> None:
        self._lab, self._out, self._plot, self._seen, self._teller = lab, out, plot, seen, teller
        self._nodes = lab.spec.train_names
        self._course: Course | None = None
        self._told_course = False
        self._told_resizes = 0
        self._told_states: dict[int, str] = {}
        self._told_map = ""

    def play(self) -> None:
        """Play from the first submission to the last satellite's end. Raises StoryFailed, LabError."""
        most = self._plot.most_workers
        self._seen.slurm_version = self._ask_slurm_version()
        self._submit_elastic()
        self._until("the elastic job starts", 30, lambda: self._elastic().runs)
        self._until("its first batch is committed", 90, lambda: self._course is not None)
        self._until(f"it has {most} workers", 90, lambda: self._workers() == most)
        calm_until = self._batches() + self._plot.calm_batches
        self._until("it has trained like that for a while", 60, lambda: self._batches() >= calm_until)
        self._submit_rigid()
        self._until("the rigid job starts", 60, self._rigid_has_started)
        self._until("the rigid job ends", self._plot.rigid_seconds + 60, lambda: self._rigid().over)
        self._until(f"the elastic job has {most} workers again", 90, lambda: self._workers() == most)
        self._until("the elastic job ends", 240, lambda: self._elastic().over, ends=True)
        self._count_what_is_left()

    def _ask_slurm_version(self) -> str:
        """The release that slurmctld reports."""
        for line in self._lab.run(["scontrol", "show", "config"]).stdout.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "SLURM_VERSION":
                return value.strip()
        raise StoryFailed("Slurm's controller does not say its version.")

    def _submit_elastic(self) -> None:
        plot = self._plot
        request = ["sbatch", "-n", "1", "--gpus-per-task=1", f"--elastic=1-{plot.most_workers}"]
        self._teller.say(f"$ {' '.join(request)} train.sbatch", "bold")
        self._teller.show(
            f"from one worker to {plot.most_workers}; it runs `flexo run python train.py`, "
            "an elastic Horovod script"
        )
        self._teller.show("below: E its own GPUs, e its satellites', R the rigid job's, · idle")
        script = [str(EXAMPLE / "train.sbatch"), "--epochs", str(plot.epochs), "--batch", str(plot.batch)]
        script += ["--step-seconds", str(plot.step_seconds), "--log-dir", str(self._out / "elastic")]
        where = ["--parsable", "--chdir", str(EXAMPLE), "--output", str(self._out / "elastic.out")]
        self._seen.submitted_at = time.time()
        self._seen.elastic_id = self._sbatch([*request, *where, *script])

    def _submit_rigid(self) -> None:
        plot = self._plot
        nodes = plot.nodes - 1
        request = ["sbatch", "-N", str(nodes), f"--gpus-per-node={plot.gpus_per_node}"]
        room = room_for(self._look(), self._nodes, plot.gpus_per_node, plot.gpus_per_node)
        self._teller.say(f"$ {' '.join(request)} rigid.sbatch", "bold")
        self._teller.show(
            f"it needs {plot.gpus_per_node} GPUs on each of {nodes} nodes; nodes with so many idle: {room}"
        )
        shell = f"date +%s.%N > {shlex.quote(str(self._started_file))}; sleep {plot.rigid_seconds}"
        where = ["--parsable", "--job-name", "rigid", "--output", str(self._out / "rigid.out")]
        submitted_at = time.time()
        job_id = self._sbatch([*request, *where, "--wrap", shell])
        self._seen.rigid = Rigid(job_id, nodes, plot.gpus_per_node, submitted_at, room, started_at=None)

    def _sbatch(self, command: list[str]) -> int:
        return int(self._lab.run(command).stdout.split(";")[0])

    @property
    def _started_file(self) -> Path:
        return self._out / "rigid.started"

    def _rigid_has_started(self) -> bool:
        """True if the rigid job's script has written its start time. Slurm's own times are whole seconds."""
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
                    f"The elastic job ended ({self._elastic().state}) before this: {what}. "
                    f"What it printed is in {self._out}/elastic.out."
                )
            if time.monotonic() > deadline:
                raise StoryFailed(f"Not within {limit_s:.0f} s: {what}.")
            time.sleep(_LOOK_EVERY_S)

    def _look(self) -> Look:
        """Poll the queue and the workers' logs once, and print the changes."""
        text = self._lab.run(["scontrol", "-d", "show", "job"]).stdout
        look = Look(time.time(), parse_jobs(text))
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
            raise StoryFailed(f"Slurm does not know job {job_id}.")
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
        drawn = node_map(look, self._nodes, self._plot.gpus_per_node, letters)
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
