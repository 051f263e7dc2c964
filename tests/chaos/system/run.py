"""One run: jobs and loans go on, things fail as planned, and everything is looked at afterwards."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from training.elastic_jobs import submit

from chaos import victims
from chaos.checker import read
from chaos.system import job_checks, slurm_checks
from chaos.system.evidence import Evidence, Strike, Submitted, Training, Use, Violation
from chaos.system.hands import Hands
from chaos.system.judge import judge
from chaos.system.looks import Look, SlurmJob, from_lines, latest
from chaos.system.plan import Elastic, Fault, Ordinary, Plan
from chaos.system.stage import Stage, stage
from flexo_lab import LabCommandFailed, LabFailed

SCRIPT = Path(__file__).resolve().parents[1] / "train.py"
BEGINS_S = 180.0
"""Until all elastic jobs have committed something; nothing fails before."""
SETTLES_S = 15.0
"""After the last failure is made good: so long everything trains on."""
ENDS_S = 240.0
"""Until all jobs have ended, from the word that they shall."""
LEAVES_S = 60.0
GHOST_S = 30.0
"""From a script's end until Slurm, restarted, has had time to notice it."""
POLL_S = 1.0
_SUBMITS_S = 120.0
_ORDINARY = """#!/bin/sh
log="$1.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}.$$"
echo "$SLURM_JOB_ID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" > "$log.place"
end=$(($(date +%s) + $2))
while [ "$(date +%s)" -lt "$end" ] && [ ! -e "$1.stop" ]; do date +%s.%N >> "$log.times"; sleep 0.5; done
: > "$log.ended"
"""
"""An ordinary job says where it is, that it lives, and that it ends: of each run in files of its own.

slurmctld that is killed just after a job's start forgets it, and starts the job again under the same numbers.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    seed: int
    seconds: float
    strikes: tuple[Strike, ...]
    violations: tuple[Violation, ...]
    waits_s: dict[str, float]
    """How long each ordinary job waited for what could be taken from satellites or lent servers."""
    pauses_s: dict[str, float]
    """Each elastic job's longest time without a mini-batch."""
    satellites: int
    lent_gpu_s: float
    """GPU seconds that training had on inference servers."""
    looks: int

    @property
    def well(self) -> bool:
        """Nothing is wrong."""
        return not self.violations


class _NotTraining(Exception):
    """Elastic jobs did not begin to train."""


@dataclass
class Run:
    """One run on a stage that is there; its folder is empty but for ordinary.sh (see `prepare`)."""

    plan: Plan
    stage: Stage
    folder: Path
    hands: Hands
    submitted: list[Submitted] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    wrong: list[Violation] = field(default_factory=list)
    """What came up on the way; the rest is judged afterwards."""
    settles_s: float = SETTLES_S
    more: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """What else happens, in seconds from when all train."""
    stopped_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- the course of things

    def play(self) -> None:
        """All of it; what stops it is a violation."""
        try:
            self._play()
        except _NotTraining:
            self._note("elastic jobs begin to train", f"not all did within {BEGINS_S:.0f} s")
        except (LabFailed, LabCommandFailed) as error:
            self._note("the cluster can be repaired", str(error))
        except ValueError as error:  # logs that contradict each other
            self._note("every sample counts once", str(error))
        self._end()

    def _note(self, invariant: str, what: str) -> None:
        self.wrong.append(Violation(invariant, what))

    def _play(self) -> None:
        """From the first submission to the last job's end."""
        if self.plan.filler is not None:
            self.submit_ordinary(self.plan.filler)
        for what in self.plan.elastic:
            self.submit_elastic(what)
        self.watch(BEGINS_S, self.all_train)
        if not self.all_train():
            raise _NotTraining
        with self.timeline() as done:
            self.watch(self.plan.lasts_s + _SUBMITS_S, lambda: all(each.done() for each in done))
        for each in done:
            each.result()
        self.watch(self.settles_s, lambda: False)

    def _end(self) -> None:
        """Let everything end, and wait for it."""
        self.stopped_at = time.time()
        for _, folder in self.hands.jobs:
            (folder / "logs" / "stop").touch()
        if self.plan.filler is not None:
            (self.folder / f"{self.plan.filler.name}.stop").touch()
        self.watch(ENDS_S, self.all_over)

    @contextlib.contextmanager
    def timeline(self) -> Iterator[list[Future[None]]]:
        """Every failure and every arrival in its own time; what has not happened at the end never does."""
        began = time.monotonic()
        events: list[tuple[float, Callable[[], None]]] = [
            (fault.at_s, partial(self.strike, fault)) for fault in self.plan.faults
        ]
        events += [(each.at_s, partial(self.submit_ordinary, each)) for each in self.plan.arrivals]
        events += self.more

        def happen(at_s: float, what: Callable[[], None]) -> None:
            if not self.hands.over.wait(max(0.0, began + at_s - time.monotonic())):
                what()

        with ThreadPoolExecutor(len(events)) as pool:
            try:
                yield [pool.submit(happen, at_s, what) for at_s, what in events]
            finally:
                self.hands.over.set()

    def watch(self, seconds: float, until: Callable[[], bool]) -> None:
        """Wait, notice daemons that end without us, and repair what Slurm leaves to its administrator."""
        deadline = time.monotonic() + seconds
        missing: set[str] = set()
        while not until() and time.monotonic() < deadline:
            before, missing = missing, self.hands.missing()
            for name in sorted(before & missing):  # twice: it may just have been killed, or started
                self.hands.wanted.discard(name)
                self.deaths.append(f"{name} has ended by itself")
            last = self._last_look()
            jobs = last.jobs if last else ()
            if held := [job.job_id for job in jobs if job.not_launched]:
                self.hands.release(held)
            self.hands.cancel(self._ended_unnoticed(jobs))
            time.sleep(POLL_S)

    def _ended_unnoticed(self, jobs: Sequence[SlurmJob]) -> list[int]:
        """Jobs that Slurm would show as running for ever, because slurmctld was killed at their end."""
        ends = self._ordinary_ends()
        with self._lock:
            strikes = tuple(self.strikes)
        return [
            job.job_id
            for job in jobs
            if job.runs
            and slurm_checks.end_is_forgotten(job.job_id, ends, strikes)
            and time.time() > ends[job.job_id] + GHOST_S
        ]

    def _ordinary_ends(self) -> dict[int, float]:
        """Seconds since the epoch, by job id."""
        return {int(path.name.split(".")[1]): path.stat().st_mtime for path in self.folder.glob("*.ended")}

    def _last_look(self) -> Look | None:
        """None: the observer has not begun."""
        seen = self.stage.observed
        return latest(seen.read_text()) if seen.exists() else None

    def strike(self, fault: Fault) -> None:
        """Do it, and write it down."""
        if (strike := self.hands.strike(fault)) is not None:
            with self._lock:
                self.strikes.append(strike)

    # --- jobs

    def submit_elastic(self, what: Elastic) -> None:
        """As its user would, but for the address of flexod."""
        folder = self.folder / what.name
        folder.mkdir()
        at = time.time()
        options = [f"--job-name={what.name}", f"-N{what.base_nodes}", f"-n{what.smallest}"]
        options += ["--gpus-per-task=1", "--open-mode=append"]
        options += ["--elastic-fungible"] if what.fungible else []
        environment = [f"FLEXO_TRACE={folder}/trace.jsonl", f"FLEXO_DAEMON={self.stage.daemon_address}"]
        job = submit(
            self.stage.lab, folder, str(SCRIPT), "--samples", str(job_checks.SAMPLES),
            options=options, elastic=f"{what.smallest}-{what.largest}", environment=environment,
        )  # fmt: skip
        self.hands.jobs.append((job.job_id, folder))
        self.submitted.append(Submitted(what, job.job_id, at))

    def submit_ordinary(self, what: Ordinary) -> None:
        """Again until Slurm takes it: slurmctld may be away."""
        script = self.folder / "ordinary.sh"
        options = ["--parsable", "--output=/dev/null", f"--job-name={what.name}", f"-N{what.nodes}"]
        options += [f"--gpus-per-node={what.gpus_per_node}"]
        options += ["--partition=infer"] if what.inference else []
        options += [f"--nodelist={what.server}"] if what.server else []
        deadline = time.monotonic() + _SUBMITS_S
        while time.monotonic() < deadline:
            at = time.time()
            try:
                command = ["sbatch", *options, str(script), str(self.folder / what.name), str(what.runs_s)]
                answer = self.stage.lab.run(command).stdout
            except (LabCommandFailed, subprocess.TimeoutExpired):
                time.sleep(1.0)
                continue
            with self._lock:
                self.submitted.append(Submitted(what, int(answer.split(";")[0]), at))
            return
        raise LabFailed(f"Slurm did not accept {what.name} within {_SUBMITS_S:.0f} s")

    def all_train(self) -> bool:
        """Whether each has committed something."""
        return all(
            any(world.committed for world in read(folder / "logs").worlds) for _, folder in self.hands.jobs
        )

    def all_over(self) -> bool:
        """Whether Slurm has nothing left to do for any of them."""
        last = self._last_look()
        return (
            last is not None
            and last.at > self.stopped_at
            and all((job := last.job(each.job_id)) is None or job.over for each in self.submitted)
        )

    # --- afterwards

    def evidence(self, remains: tuple[str, ...]) -> Evidence:
        """All that was seen."""
        training = {}
        for job_id, folder in self.hands.jobs:
            try:
                training[job_id] = Training(read(folder / "logs"), self.stopped_at)
            except ValueError as error:
                self._note("every sample counts once", f"{folder.name}: {error}")
        uses = [use for _, folder in self.hands.jobs for use in _uses_of_workers(folder)]
        uses += [use for path in self.folder.glob("*.place") for use in _uses_of_ordinary(path)]
        strikes = sorted(self.strikes, key=lambda strike: strike.at)
        return Evidence(
            from_lines(self.stage.observed.read_text()), tuple(strikes), tuple(self.submitted),
            training, self._ordinary_ends(), tuple(uses), tuple(self.deaths), remains,
        )  # fmt: skip

    def leftovers(self) -> tuple[str, ...]:
        """What is still there of jobs that have ended, a while later."""
        deadline = time.monotonic() + LEAVES_S
        while (left := self._left_now()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def _left_now(self) -> tuple[str, ...]:
        processes = {pid: folder.name for _, folder in self.hands.jobs for pid in victims.everything(folder)}
        last = self._last_look()
        satellites = [job.job_id for job in (last.jobs if last else ()) if job.tag and not job.over]
        return (
            *(f"process {pid} of {name}" for pid, name in sorted(processes.items())),
            *(f"satellite {job_id} in the queue" for job_id in satellites),
        )


def prepare(plan: Plan, place: Stage, folder: Path) -> Run:
    """A run in `folder`, which must not be there yet."""
    folder.mkdir()
    (folder / "ordinary.sh").write_text(_ORDINARY)
    nodes = [f"slurmd {node}" for node in place.lab.spec.node_names]
    hands = Hands(place.lab, place.links, wanted={"flexod", "slurmctld", *nodes})
    return Run(plan, place, folder, hands)


def run(plan: Plan, keep: Path) -> Outcome:
    """Carry the plan out on a lab of its own. What was written is copied to `keep` if something is wrong."""
    began = time.monotonic()
    with stage(plan.seed) as place:
        this = prepare(plan, place, place.lab.scratch / "jobs")
        this.play()
        evidence = this.evidence(this.leftovers())
        violations = (*this.wrong, *judge(evidence))
        if violations:
            keep_all(place, this.folder, keep, evidence)
        return Outcome(
            plan.seed, round(time.monotonic() - began, 1), evidence.strikes, violations,
            _rounded(slurm_checks.waits(evidence)), _rounded(job_checks.pauses(evidence)),
            len({job.job_id for look in evidence.looks for job in look.jobs if job.tag and job.runs}),
            round(_lent_gpu_s(evidence.looks), 1), len(evidence.looks),
        )  # fmt: skip


def _uses_of_workers(folder: Path) -> Iterator[Use]:
    """A worker's GPU, from its first line to its last."""
    for path in (folder / "logs").glob("*.jsonl"):
        text = path.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        for line in lines:
            if line["event"] == "start":
                who = f"worker {line['pid']} of {folder.name}"
                yield Use(who, line["slurm_job"], line["node"], line["gpu"], line["time"], lines[-1]["time"])


def _uses_of_ordinary(place: Path) -> Iterator[Use]:
    """What a job of a fixed size has on the node of its script."""
    times = place.with_suffix(".times")
    moments = [float(word) for word in times.read_text().split()] if times.exists() else []
    if not moments:
        return  # it was ended at once
    job, node, gpus = place.read_text().split()
    for gpu in gpus.split(","):
        yield Use(place.stem, int(job), node, int(gpu), moments[0], moments[-1])


def _lent_gpu_s(looks: tuple[Look, ...]) -> float:
    """GPU seconds of training on inference servers, as the looks show it."""
    total = 0.0
    for look, following in pairwise(looks):
        held = Counter(
            each.node in slurm_checks.SERVERS
            for job in look.jobs if job.partition != "infer"
            for each in job.held for _ in each.gpus
        )  # fmt: skip
        total += held[True] * (following.at - look.at)
    return total


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in values.items()}


def keep_all(place: Stage, jobs: Path, keep: Path, evidence: Evidence) -> None:
    """Logs of daemons and jobs, what the observer saw, and what was done when."""
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    shutil.copytree(place.lab.layout.logs, keep / "lab-logs")
    shutil.copytree(jobs, keep / "jobs")
    shutil.copy(place.observed, keep)
    shutil.copytree(place.lab.layout.flexod, keep / "flexod")
    (keep / "strikes.txt").write_text(
        "".join(f"{each.at:.2f} to {each.until:.2f} {each.deed} {each.what}\n" for each in evidence.strikes)
    )
