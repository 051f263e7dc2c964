"""An elastic job on this machine without Slurm: real agents, leader, workers, Horovod's layer and torch core.

Satellites are agents that come and are told to go; MUNGE and Slurm's answers are stand-ins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flexo_bench.local_job.trusting import Trusting
from flexo_bench.workers_logs import Event, WorkersLogs
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.resources import Resources
from horovod_elastic.aggregation import place
from horovod_elastic.core.choice import TORCH, VARIABLE
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan, Site

BOUND_S = 150.0
BASE = 17
"""The base's job id."""
FIRST, SECOND = "base", "second"
"""Names of the base's nodes."""


class JobFailed(AssertionError):
    """The job did not do what was awaited; the message has its output."""


@dataclass
class LocalJob:
    """A base of some workers on one node or two; each satellite has a node of its own."""

    folder: Path
    plan: JobPlan
    command: list[str]
    environment: dict[str, str]
    work: Path = Path()
    """The folder in which the script runs."""
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _logs: dict[str, WorkersLogs] = field(default_factory=dict)
    """By the suffix of their files."""

    def start(self, node: str, workers: int, *, base: bool = False) -> None:
        """An agent comes: the base, or a satellite."""
        job_id = BASE if base else BASE + 1 + len(self.supervisors)
        how = [node, str(job_id), str(workers), self.plan.to_text(), "base" if base else ""]
        with (self.folder / "output").open("ab") as output:
            self.supervisors[node] = subprocess.Popen(
                [sys.executable, "-P", "-m", "flexo_bench.local_job.agent", *how, *self.command],
                stdout=output,
                stderr=output,
                cwd=self.work,
                env={**os.environ, "FLEXO_TRACE": str(self.folder / "trace"), **self.environment},
                start_new_session=True,
            )

    def send_away(self, node: str) -> None:
        """As Slurm does it with a satellite: workers leave at a boundary."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.supervisors[node].pid).children():
                if "agent" in child.cmdline():
                    child.terminate()

    def aggregators(self) -> list[psutil.Process]:
        """The Aggregators that live and serve their nodes."""
        found = []
        for each in self.aggregator_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                folder = each.cmdline()[each.cmdline().index("--folder") + 1]
                found += [each] if each.pid == place.holder(Path(folder)) else []
        return found

    def aggregator_processes(self) -> list[psutil.Process]:
        """Those that serve, and those that wait for their death: children of supervisors."""
        found = []
        for supervisor in self.supervisors.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(supervisor.pid).children()
                found += [each for each in children if "horovod_elastic.aggregation" in each.cmdline()]
        return found

    def output(self) -> str:
        """What all of its processes have printed so far."""
        return (self.folder / "output").read_text()

    def events(self, *kinds: str, suffix: str = "jsonl") -> list[Event]:
        """What workers have logged, in order of time."""
        logs = self._logs.setdefault(suffix, WorkersLogs(self.folder / "logs", suffix))
        return logs.events(*kinds)

    def wait_until(self, what: str, condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
        """Wait until `condition` holds. Raises JobFailed if all have ended, or after the time limit."""
        deadline = time.monotonic() + bound_s
        while not condition():
            ended = {node: supervisor.poll() for node, supervisor in self.supervisors.items()}
            lost = time.monotonic() > deadline or all(code is not None for code in ended.values())
            if lost and not condition():
                raise JobFailed(f"waiting for {what}; {ended}\n{self.output()[-6000:]}")
            time.sleep(0.2)

    def pids(self, size: int, after: float = 0.0) -> dict[int, int]:
        """By rank, the workers that entered last, if they are as many, and all have stepped since."""
        entered = [event for event in self.events("enter") if event["time"] > after]
        if not entered or entered[-1]["size"] != size:
            return {}
        world = entered[-1]["world"]
        members = {event["rank"]: event["pid"] for event in entered if event["world"] == world}
        stepped = {event["pid"] for event in self.events("step") if event["world"] == world}
        return members if len(members) == size and stepped.issuperset(members.values()) else {}

    def wait_for_size(self, size: int, after: float = 0.0) -> dict[int, int]:
        """Until as many train; their pids by rank."""
        self.wait_until(f"{size} workers", lambda: self.pids(size, after))
        return self.pids(size, after)

    def plan_early_return(self, batch: int, end: int) -> None:
        """Of the last rank, at this mini-batch; the others train to the end. For scripts with --by-plan."""
        plan = self.folder / "logs" / "plan"
        plan.with_suffix(".new").write_text(f"{batch} {end}")
        plan.with_suffix(".new").rename(plan)

    def stop(self) -> None:
        """Tell the script to end."""
        (self.folder / "logs" / "stop").touch()

    def wait(self, bound_s: float = BOUND_S) -> int:
        """For the end of the base's supervisor; its exit code."""
        self.wait_until("the end", lambda: self.supervisors[FIRST].poll() is not None, bound_s)
        return int(self.supervisors[FIRST].wait())


def train_at(job: LocalJob, size: int, after: int = 0, bound_s: float = BOUND_S) -> int:
    """Wait for a generation after `after` in which so many workers have taken steps; return it."""

    def newest() -> int:
        steps = [each for each in job.events("step") if each["world"]]
        world = max((each["world"] for each in steps), default=0)
        ranks = {each["rank"] for each in steps if each["world"] == world}
        return int(world) if world > after and ranks == set(range(size)) else 0

    job.wait_until(f"{size} workers", newest, bound_s)
    return newest()


@contextlib.contextmanager
def local_job(
    folder: Path,
    script: Path,
    *arguments: str,
    workers: int = 2,
    maximum: int = 9,
    unit: int = 1,
    minimum: int = 0,
    second: int = 0,
    batch: str = "",
    daemon: str = "",
    **variables: str,
) -> Iterator[LocalJob]:
    """A job that runs `script`, whose log files go to folder/logs. All of it has ended afterwards.

    With `maximum` workers in its base, it has a fixed size. `daemon`: flexod's host:port. `batch`: the range
    of its aggregate batch, MIN-MAX.
    """
    command = [sys.executable, str(script), "--log-dir", str(folder / "logs"), *arguments]
    of_base = {
        **{"workers": workers, "maximum": maximum, "unit": unit},
        **{"minimum": minimum, "second": second, "batch": batch},
    }
    with job_of(folder, command, daemon=daemon, **of_base, **variables) as job:  # type: ignore[arg-type]
        yield job


@contextlib.contextmanager
def job_of(
    folder: Path,
    command: list[str],
    *,
    workers: int = 2,
    maximum: int = 9,
    unit: int = 1,
    work: Path = Path(),
    minimum: int = 0,
    second: int = 0,
    batch: str = "",
    daemon: str = "",
    **variables: str,
) -> Iterator[LocalJob]:
    """A job that runs `command` in the folder `work` (see local_job).

    With a `minimum`, it is opportunistic: its base has no workers. `second`: how many workers its base has on
    a second node.
    """
    (folder / "logs").mkdir(parents=True)
    with LeaseServer("127.0.0.1", Trusting()) as server:
        workers = 0 if minimum else workers
        nodes, shape = [BaseNode(FIRST, workers)], Resources(0, 1, 0, "")
        if second:
            nodes.append(BaseNode(SECOND, second))
        least, rest = minimum or workers + second, {"unit": unit, "opportunistic": minimum > 0}
        base = BaseJob(str(BASE), 0, tuple(nodes), shape, least, maximum, "", batch, **rest)  # type: ignore[arg-type]
        plan = JobPlan(base, Site(), "", daemon, str(LeasePlace(Kind.RUN, (server.endpoint,))))
        kept = {"FLEXO_PARKED_FOLDER": str(folder)} if minimum else {}
        environment = {VARIABLE: TORCH, "OMP_NUM_THREADS": "1", **kept, **variables}
        job = LocalJob(folder, plan, command, environment, work)
        try:
            for node in nodes:
                job.start(node.name, node.workers, base=True)
            yield job
        finally:
            for supervisor in job.supervisors.values():
                if supervisor.poll() is None:  # the number of one that has ended may be another process's
                    os.killpg(supervisor.pid, signal.SIGKILL)
                supervisor.wait()
