"""Plays the day: traffic comes and goes as inference jobs, and two training jobs use the idle servers.

The story uses only commands that people type. It reads the facts from Slurm, and asks flexod only for its
list of loans with their deadlines.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flexo_demos.elastic.measure import Course, course, read_logs
from flexo_demos.elastic.plot import EXAMPLE
from flexo_demos.elastic.queue import QueuedJob
from flexo_demos.elastic.slurm import parse_jobs
from flexo_demos.elastic.story import StoryFailed
from flexo_demos.elastic.tell import Teller
from flexo_demos.loans import book
from flexo_demos.loans.book import LoanHistory
from flexo_demos.loans.looks import BASE, IDLE, INFERENCE, SATELLITES, Look, nodes_of_partition, restarts_of
from flexo_demos.loans.report import InferenceJob
from flexo_demos.loans.traffic import Traffic
from flexo_lab import Lab, LabCommandFailed
from flexo_lab.slurm_files import BORROWED_PARTITION, INFERENCE_PARTITION

_LOOK_EVERY_S = 0.4
_BOOK_EVERY_S = 2.0
_SETTLED_S = 15.0
"""Running time after which a base is taken to train."""
_LETTERS = {IDLE: "·", INFERENCE: "I", SATELLITES: "e", BASE: "F"}


@dataclass(frozen=True, slots=True)
class Plot:
    """Sizes of the story. Training nodes are full, so the fungible job has to start on a lent server."""

    nodes: int = 2
    gpus_per_node: int = 2
    servers: int = 4
    most_workers: int = 5
    traffic: Traffic = field(
        default_factory=lambda: Traffic(servers=4, day_s=220, spike_at=70, spike_s=20, spike_servers=3)
    )
    step_seconds: float = 0.2
    """Pause in each step that stands for the GPUs' work."""


@dataclass(slots=True)
class Seen:
    """The demo's observations so far. The report uses them even if the story fails."""

    slurm_version: str = ""
    began_at: float = 0.0
    elastic_id: int = 0
    fungible_id: int = 0
    looks: list[Look] = field(default_factory=list)
    books: list[tuple[float, LoanHistory]] = field(default_factory=list)
    inference: list[InferenceJob] = field(default_factory=list)
    course: Course | None = None


class Story:
    """Plays the plot on a lab."""

    def __init__(self, lab: Lab, out: Path, plot: Plot, seen: Seen, teller: Teller) -> None:
        self._lab, self._out, self._plot, self._seen, self._teller = lab, out, plot, seen, teller
        self._servers = lab.spec.infer_names
        self._serving: list[int] = []
        """Ids of the inference jobs whose traffic is still there, oldest first."""
        self._told_map = ""
        self._told_states: dict[int, str] = {}
        self._told_lent: frozenset[str] = frozenset()
        self._told_restarts = 0
        self._book_at = 0.0
        self._base_runs_at: float | None = None
        """Time since which the fungible job runs on a lent server; None if it does not. Used at the end."""
        self._surprised = False

    def play(self) -> None:
        """Play the whole day. Raises StoryFailed, LabError."""
        self._seen.slurm_version = self._ask_slurm_version()
        self._look(self._plot.traffic.needed(0))
        self._serve(self._plot.traffic.needed(0))
        self._train()
        self._seen.began_at = time.time()
        end_at = self._seen.began_at + self._plot.traffic.lasts_s
        self._teller.say("The day begins, in the evening", "bold")
        while time.time() < end_at:
            self._serve(self._needed())
            self._look(self._needed())
            self._training_lives()
            time.sleep(_LOOK_EVERY_S)
        self._teller.say("The day is over", "bold")
        self._be_surprised()
        self._read_book(time.time())

    def _ask_slurm_version(self) -> str:
        for line in self._lab.run(["scontrol", "show", "config"]).stdout.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "SLURM_VERSION":
                return value.strip()
        raise StoryFailed("Slurm's controller does not say its version.")

    # Training.

    def _train(self) -> None:
        plot = self._plot
        elastic = ["-n", "1", "--gpus-per-task=1", f"--elastic=1-{plot.most_workers}"]
        self._seen.elastic_id = self._submit_training("elastic", elastic)
        filler = plot.nodes * plot.gpus_per_node - 1
        self._teller.say(f"$ sbatch -n {filler} --gpus-per-task=1 rigid.sbatch", "bold")
        self._teller.show("another job of a fixed size, which fills the training nodes")
        rigid = ["-n", str(filler), "--gpus-per-task=1", "--output=/dev/null"]
        filler_id = self._sbatch([*rigid, "--wrap", "sleep 900"])
        self._wait_until(
            lambda: self._runs(self._seen.elastic_id, filler_id), "the training nodes are full", 30
        )
        workers = plot.gpus_per_node
        fungible = ["-n", str(workers), "-N", "1", "--gpus-per-task=1"]
        fungible += [f"--elastic={workers}-{workers}", "--elastic-fungible"]
        self._seen.fungible_id = self._submit_training("fungible", fungible)
        self._teller.show("training nodes are full, and it may start on any GPU: a lent server will do")
        self._teller.show("below, a server a letter: I inference, e satellites, F the fungible job's base, "
                          "· idle; [lent]")  # fmt: skip
        self._wait_until(self._trains, "the elastic job's first batch is committed", 120)

    def _submit_training(self, name: str, request: list[str]) -> int:
        plot = self._plot
        self._teller.say(f"$ sbatch {' '.join(request)} train.sbatch", "bold")
        script = ["--epochs", "100000", "--step-seconds", str(plot.step_seconds)]
        script += ["--log-dir", str(self._out / name)]
        where = ["--job-name", name, "--chdir", str(EXAMPLE), "--output", str(self._out / f"{name}.out")]
        return self._sbatch([*request, *where, "--open-mode=append", str(EXAMPLE / "train.sbatch"), *script])

    def _sbatch(self, words: list[str]) -> int:
        return int(self._lab.run(["sbatch", "--parsable", *words]).stdout.split(";")[0])

    def _runs(self, *job_ids: int) -> bool:
        look = self._look(self._plot.traffic.needed(0))
        return all((job := look.job(job_id)) is not None and job.runs for job_id in job_ids)

    def _trains(self) -> bool:
        self._look(self._plot.traffic.needed(0))
        return self._seen.course is not None

    def _wait_until(self, happened: Callable[[], bool], what: str, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not happened():
            if time.monotonic() > deadline:
                raise StoryFailed(f"Not within {limit_s:.0f} s: {what}.")
            time.sleep(_LOOK_EVERY_S)

    def _training_lives(self) -> None:
        for name, job_id in (("elastic", self._seen.elastic_id), ("fungible", self._seen.fungible_id)):
            job = self._seen.looks[-1].job(job_id)
            if job is None or job.over:
                state = job.state if job else "unknown to Slurm"
                raise StoryFailed(f"The {name} job has ended ({state}); what it printed is in {name}.out.")

    # Traffic.

    def _serve(self, needed: int) -> None:
        """Keep `needed` inference jobs, each for a whole server: submit new ones, or cancel the newest."""
        while len(self._serving) > needed:
            self._lab.run(["scancel", "--quiet", str(self._serving.pop())])
        for _ in range(needed - len(self._serving)):
            self._serving.append(self._submit_inference())

    def _submit_inference(self) -> int:
        number = len(self._seen.inference) + 1
        shell = f"date +%s.%N > {shlex.quote(str(self._start_file(number)))}; exec sleep 900"
        gpus = self._lab.spec.gpus_per_infer_node
        submitted_at = time.time()
        job_id = self._sbatch(
            [f"--partition={INFERENCE_PARTITION}", "-N", "1", f"--gpus-per-node={gpus}", "--output=/dev/null",
             "--job-name=inference", "--wrap", shell]
        )  # fmt: skip
        self._seen.inference.append(InferenceJob(job_id, submitted_at))
        return job_id

    def _start_file(self, number: int) -> Path:
        return self._out / "inference" / f"{number}.started"

    def _note_starts(self, look: Look) -> None:
        """Record the server and the start of inference jobs, and the server's holder at their submission."""
        for index, known in enumerate(self._seen.inference):
            job = look.job(known.job_id)
            if known.started_at is not None or job is None or not job.gpus:
                continue
            with suppress(OSError, ValueError):
                started_at = float(self._start_file(index + 1).read_text())
                server = job.gpus[0][0]
                before = [each for each in self._seen.looks if each.at <= known.submitted_at] or [look]
                self._seen.inference[index] = fresh = replace(
                    known,
                    started_at=started_at,
                    server=server,
                    found=before[-1].on(server),
                    found_lent=server in before[-1].lent,
                )
                self._teller.say(
                    f"inference job {job.job_id} runs on {server} (on which was: {fresh.found}), "
                    f"{fresh.wait_s:.1f} s after its submission",
                    "dark_orange",
                )

    def _be_surprised(self) -> None:
        """Raise traffic to all servers at once in the next night, including the server with the base."""
        self._wait_until(self._base_is_lent_a_server, "the fungible job runs on a lent server again", 180)
        self._teller.say("Traffic that nobody foresaw: every server at once, with the base on one", "bold")
        self._surprised = True
        self._serve(self._plot.servers)
        self._wait_until(self._all_are_served, "all inference jobs run and all loans are over", 120)

    def _base_is_lent_a_server(self) -> bool:
        """True if the fungible job has run on a lent server for `_SETTLED_S`."""
        self._serve(self._needed())
        look = self._look(self._needed())
        job = look.job(self._seen.fungible_id)
        on_loan = job is not None and job.runs and all(node in look.lent for node, _ in job.gpus)
        self._base_runs_at = (self._base_runs_at or look.at) if on_loan else None
        return self._base_runs_at is not None and look.at - self._base_runs_at >= _SETTLED_S

    def _all_are_served(self) -> bool:
        self._look(self._needed())
        served = {job.job_id for job in self._seen.inference if job.started_at is not None}
        return served.issuperset(self._serving) and not self._seen.books[-1][1].standing

    def _needed(self) -> int:
        """The present traffic, in servers."""
        if self._surprised:
            return self._plot.servers
        return self._plot.traffic.needed(time.time() - self._seen.began_at)

    # Polling.

    def _look(self, needed: int) -> Look:
        at = time.time()
        text = self._lab.run(["scontrol", "-d", "show", "job"]).stdout
        partition = self._lab.run(["scontrol", "--oneliner", "show", "partition", BORROWED_PARTITION]).stdout
        look = Look(
            at,
            nodes_of_partition(partition),
            needed,
            parse_jobs(text),
            frozenset(job.job_id for job in self._seen.inference),
            restarts_of(text, self._seen.fungible_id),
        )
        self._seen.looks.append(look)
        self._note_starts(look)
        self._tell(look)
        if at >= self._book_at:
            self._book_at = at + _BOOK_EVERY_S
            self._read_book(at)
        return look

    def _read_book(self, at: float) -> None:
        """Read flexod's list of loans, and the course of training from the logs."""
        with suppress(LabCommandFailed):  # the next poll asks again
            self._seen.books.append(
                (at, book.parse(self._lab.run(["flexo", "loans", "--all", "--json"]).stdout))
            )
        self._seen.course = course(read_logs(self._out / "elastic"))

    def _tell(self, look: Look) -> None:
        for server in sorted(look.lent - self._told_lent):
            self._teller.say(f"{server} is lent to training: in the partition {BORROWED_PARTITION}", "blue")
        for server in sorted(self._told_lent - look.lent):
            self._teller.say(f"{server} is closed to newcomers: out of {BORROWED_PARTITION} again", "blue")
        self._told_lent = look.lent
        if look.restarts > self._told_restarts:
            self._told_restarts = look.restarts
            self._teller.say("the fungible job is preempted and requeued", "red")
        for job in look.jobs:
            if job.state != self._told_states.get(job.job_id):
                self._told_states[job.job_id] = job.state
                self._tell_job(job)
        servers = "  ".join(self._drawn(look, name) for name in self._servers)
        drawn = f"{servers}   traffic {look.needed}"
        if drawn != self._told_map:
            self._told_map = drawn
            self._teller.show(drawn)
        self._teller.now(drawn)

    @staticmethod
    def _drawn(look: Look, server: str) -> str:
        text = f"{server} {_LETTERS[look.on(server)]}"
        return f"[{text}]" if server in look.lent else f" {text} "

    def _tell_job(self, job: QueuedJob) -> None:
        if job.satellite and (job.runs or job.over):
            what = f"starts on {job.nodes}" if job.runs else f"has ended ({job.state.lower()})"
            self._teller.say(f"satellite {job.job_id} {what}", "green")
        elif job.job_id == self._seen.fungible_id and job.runs:
            self._teller.say(f"the fungible job starts on {job.nodes}", "green")
