"""One run: a job on the lab, one process of it killed or stopped, and everything looked at afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from training.elastic_jobs import Job, submit

from chaos import victims
from chaos.checker import Verdict, check, read
from chaos.plan import Deed, Plan
from flexo_lab import Lab, LabSpec, bring_up
from horovod_elastic.core import choice

SCRIPT = Path(__file__).resolve().parent / "train.py"
SAMPLES = 187
"""Of an epoch: no number of workers divides it."""
HANGS_S = 60.0
"""No mini-batch for so long: it hangs."""
GOES_ON = 25
"""Mini-batches (of any worker) after the deed that show that training goes on."""
LEAVES_S = 60.0
"""How long what is left of a job may take to go."""
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run. `wrong` is empty when all is well."""

    seed: int
    victim: str
    deed: str
    hit: str
    """Which process: node, and whether it was of the base."""
    at_s: float
    """After the first commit."""
    paused_s: float
    """The longest time without a mini-batch after the deed."""
    seconds: float
    exit_code: int | None
    verdict: Verdict | None
    wrong: tuple[str, ...]

    @property
    def well(self) -> bool:
        """Nothing is wrong."""
        return not self.wrong

    @property
    def restarted(self) -> bool:
        """Training began again from its beginning: documented, where nobody is left who holds the model."""
        return self.verdict is not None and self.verdict.restarts > 0


class Hung(Exception):
    """No progress for HANGS_S."""


@dataclass
class _Run:
    lab: Lab
    plan: Plan
    job: Job
    ports: set[int] = field(default_factory=set)
    satellites: set[int] = field(default_factory=set)
    struck_at: float = float("inf")
    over_at: float = float("inf")
    """A process that is held goes on then; else as struck_at."""
    began_at: float = 0.0
    hit: str = ""
    orphaned: bool = False
    """Nobody but the victim, or workers of the victim, has trained: the job may begin again."""

    @property
    def logs(self) -> Path:
        return self.job.folder / "logs"

    @property
    def trace(self) -> Path:
        return self.job.folder / "trace.jsonl"

    def wait(self, what: str, until: Callable[[], bool]) -> None:
        """Until it is so. Raises Hung when nothing was trained, or nothing begun, for HANGS_S."""
        since = time.time()
        while not until():
            if (code := self.job.exit_code()) is not None and not until():
                raise Hung(f"the job ended with {code} while waiting for {what}")
            last = max([since, *read(self.logs).batches[-1:]])
            if time.time() - last > HANGS_S:
                raise Hung(f"no mini-batch for {HANGS_S:.0f} s while waiting for {what}")
            self.look()
            time.sleep(POLL_S)

    def look(self) -> None:
        """Remember the ports and the satellites that it has."""
        self.ports |= victims.listening(victims.everything(self.job.folder))

    def committed(self) -> bool:
        """Whether anything has been committed."""
        return any(world.committed for world in read(self.logs).worlds)

    def strike(self) -> None:
        """Wait for the moment, find the victim, do it."""
        plan = self.plan
        began = time.monotonic()
        if plan.scale_to:
            time.sleep(max(0.0, plan.at_s - plan.scale_before_s))
            self.lab.run(["flexo", "scale", str(self.job.job_id), str(plan.scale_to)], check=False)
        self.look()
        time.sleep(max(0.0, plan.at_s - (time.monotonic() - began)))
        victim = None
        while victim is None:
            alive = victims.of_job(self.job.folder)
            victim = victims.choose(plan.victim, plan.choice, alive, victims.leader_name(self.trace))
            if victim is None:
                if time.monotonic() - began > plan.at_s + HANGS_S:
                    raise Hung(f"there is no {plan.victim} to be found")
                time.sleep(POLL_S)
        self.orphaned = victims.all_of(victim, alive, read(self.logs).worlds[-1].workers)
        where = "base" if victim.slurm_job == self.job.job_id else "satellite"
        self.hit = f"{victim.kind} {victim.pid} of the {where} on {victim.node}"
        self.struck_at = self.over_at = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL if plan.deed is Deed.KILL else signal.SIGSTOP)
            if plan.deed is Deed.HOLD:
                self.hold(victim.pid)

    def hold(self, pid: int) -> None:
        """Let it lie for a while, then go on; it may be gone by then."""
        until = self.struck_at + self.plan.hold_s
        self.wait("a stopped process to be continued", lambda: time.time() > until)
        os.kill(pid, signal.SIGCONT)
        self.over_at = time.time()

    def goes_on(self) -> bool:
        """Whether enough was trained since."""
        after = [at for at in read(self.logs).batches if at > self.over_at]
        return len(after) >= GOES_ON and after[-1] - self.over_at > self.plan.linger_s

    def paused_s(self) -> float:
        """The longest time without a mini-batch since the deed."""
        batches = read(self.logs).batches
        around = [at for at in batches if at > self.struck_at - 1.0]
        gaps = [second - first for first, second in pairwise(around) if second > self.struck_at]
        return max(gaps, default=0.0)

    def leftovers(self) -> list[str]:
        """What is still there of a job that has ended, a while later."""
        deadline = time.monotonic() + LEAVES_S
        while left := self.left_now():
            if time.monotonic() > deadline:
                return left
            time.sleep(POLL_S)
        return []

    def left_now(self) -> list[str]:
        processes = victims.everything(self.job.folder)
        listened = victims.listened_to()
        ports = [port for port in self.ports if port in listened and listened[port] in {None, *processes}]
        found = [f"satellite {job_id} in the queue" for job_id, _ in self.job.satellites()]
        found += [f"process {pid}" for pid in sorted(processes)]
        return found + [f"port {port} is listened on" for port in sorted(ports)]


@contextlib.contextmanager
def cluster() -> Iterator[Lab]:
    """A lab on which two jobs find nodes of their own to start on, and others to grow into."""
    lab = bring_up(LabSpec(name=f"chaos{os.getpid()}", nodes=6, gpus_per_node=2, infer_nodes=0))
    try:
        yield lab
    finally:
        lab.down()


def run(lab: Lab, plan: Plan, folder: Path, core: str) -> Outcome:
    """Carry `plan` out in `folder`, which must not be there yet, with a job on that core."""
    folder.mkdir(parents=True)
    began, wrong, code = time.monotonic(), [], None
    options = ("-N", str(plan.base_nodes), "-n", "2", "--gpus-per-task=1")
    environment = [f"FLEXO_TRACE={folder}/trace.jsonl", f"{choice.VARIABLE}={core}"]
    job = submit(lab, folder, str(SCRIPT), "--samples", str(SAMPLES),
                 options=options, elastic="2-4", environment=environment)  # fmt: skip
    this = _Run(lab, plan, job)
    try:
        this.wait("the first commit", this.committed)
        this.strike()
        this.wait("training to go on", this.goes_on)
        (this.logs / "stop").touch()
        this.wait("the end", lambda: job.exit_code() is not None)
    except Hung as error:
        wrong.append(str(error))
    if (code := job.exit_code()) is None:
        job.cancel()
    elif code != 0:
        wrong.append(f"the job ended with {code}")
    wrong += this.leftovers()
    found = read(this.logs)
    verdict = check(found, SAMPLES, this.struck_at) if code == 0 else None
    if verdict and verdict.restarts and not (this.orphaned or plan.scale_to):
        wrong.append(
            "training began again from its beginning, although a worker was left that held the model"
        )
    return Outcome(
        plan.seed, plan.victim, plan.deed, this.hit, plan.at_s, round(this.paused_s(), 2),
        round(time.monotonic() - began, 1), code, verdict,
        (*wrong, *(verdict.wrong if verdict else ())),
    )  # fmt: skip
