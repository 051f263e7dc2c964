"""The cluster of part `sharing`: a lab with slurmdbd, elastic jobs, and Aggregators of flexod's account.

Slurm counts the Aggregators' cores: each is a Slurm job of one CPU. Each elastic job has a Slurm account of
its own, so that flexod's `share` decides whether jobs may share Aggregators.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flexo_bench.service.setting import PartMissing
from flexo_bench.service.sharing_judged import AggregatorJob, aggregator_jobs
from flexo_bench.workers_logs import WorkersLogs
from flexo_lab import Lab, LabSpec, Profile, bring_up, why_unavailable

SCRIPT = Path(__file__).resolve().parent / "train_sharing.py"
NODES, WORKERS, CORES = 2, 2, 2
"""Nodes of the lab and of each job; a job's workers; the Aggregator cores that a job would reserve."""
MOST_JOBS = 5
WITHIN_S = 300.0
"""The time limit for whatever is awaited."""
AGGREGATOR_NAME: Final = "aggregator"
AGGREGATOR_MIB = 512
SHARES = "(it shares)"
"""What `flexo why` says of a job that is assigned for good."""


class SharingFailed(Exception):
    """The cluster did not do what is measured; the message says what."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """An elastic job in Slurm. Its workers' logs are in `folder`."""

    name: str
    job_id: int
    folder: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What its workers have logged of that kind, in order of time."""
        return WorkersLogs(self.folder).events(kind)

    def tell(self, word: str) -> None:
        """Create the file that steers the script."""
        (self.folder / word).touch()

    def no_longer(self, word: str) -> None:
        """Remove the file that steers the script."""
        (self.folder / word).unlink(missing_ok=True)

    def output(self) -> str:
        """What it has printed."""
        path = self.folder / "output.txt"
        return path.read_text(errors="replace") if path.exists() else ""


@dataclass(slots=True)
class SharingLab:
    """See the module."""

    lab: Lab
    tell: Callable[[str], None]
    _submitted: int = 0
    _aggregators: list[int] = field(default_factory=list)
    """Slurm jobs of all Aggregators so far."""

    # --- Aggregators ------------------------------------------------------------------------------

    def add_aggregators(self, count: int) -> None:
        """Submit so many Aggregators, and wait until they are attached to flexod."""
        before = len(self.attached())
        flexo = shlex.quote(str(Path(sys.executable).parent / "flexo"))
        command = f"exec {flexo} aggregator --memory-mib={AGGREGATOR_MIB}"
        options = [f"--job-name={AGGREGATOR_NAME}", "--ntasks=1", "--cpus-per-task=1", "--mem=1000"]
        options += [f"--output={self.lab.scratch}/aggregator-%j.txt", f"--chdir={self.lab.scratch}"]
        for _ in range(count):
            words = ["sbatch", "--parsable", *options]
            script = f"#!/bin/bash\n{command}\n"
            answer = self.lab.run(words, user=self.lab.spec.flexod_account, stdin=script).stdout
            self._aggregators.append(int(answer.split(";")[0]))
        self.wait_until(f"{count} more Aggregators", lambda: len(self.attached()) == before + count)

    def end_aggregators(self) -> None:
        """Cancel all Aggregators, and wait for their ends."""
        if self._aggregators:
            self.lab.run(["scancel", "--quiet", *map(str, self._aggregators)], check=False)
        self.wait_until_aggregators_have_ended()

    def wait_until_aggregators_have_ended(self) -> None:
        """Wait until flexod has no Aggregator, and Slurm has counted the ends of all."""
        self.wait_until("no Aggregators", lambda: not self.attached())
        self.wait_until("their ends", lambda: all(each.end is not None for each in self.accounted()))

    def attached(self) -> list[dict[str, Any]]:
        """The attached Aggregators, as `flexo status` shows them."""
        told = self.lab.run(["flexo", "status", "--json"], check=False).stdout
        pool: dict[str, Any] = (json.loads(told).get("pool") or {}) if told else {}
        return list(pool.get("aggregators", ()))

    def accounted(self) -> list[AggregatorJob]:
        """All Aggregators so far, as sacct has them."""
        if not self._aggregators:
            return []
        jobs = ",".join(map(str, self._aggregators))
        command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={jobs}"]
        asked = "--format=JobIDRaw,User,AllocCPUS,Start,End,State"
        said = self.lab.run(["env", "SLURM_TIME_FORMAT=%s", *command, asked]).stdout
        return aggregator_jobs(said)

    # --- jobs -------------------------------------------------------------------------------------

    def submit(self, name: str, account: str, step_s: float) -> Trainer:
        """Submit an elastic job that asks for the pool."""
        self._submitted += 1
        folder = self.lab.scratch / f"{name}-{self._submitted}"
        folder.mkdir()
        flexo = str(Path(sys.executable).parent / "flexo")
        how = ["--core=service", "--aggregators=pool", f"--aggregator-cores={CORES}"]
        what = [str(SCRIPT), "--folder", str(folder), "--step-seconds", str(step_s)]
        script = f"#!/bin/bash\n{shlex.join([flexo, 'run', *how, sys.executable, *what])}\n"
        options = [f"--nodes={NODES}", f"--ntasks={WORKERS}", "--gpus-per-task=1", f"--account={account}"]
        options += [f"--elastic={WORKERS}-{WORKERS}", f"--output={folder}/output.txt", f"--job-name={name}"]
        answer = self.lab.run(["sbatch", "--parsable", *options], stdin=script, cwd=folder).stdout
        return Trainer(name, int(answer.split(";")[0]), folder)

    def wait_until_it_trains(self, job: Trainer) -> None:
        """Wait until the job has made a step. Raises SharingFailed."""
        self.wait_until(f"a step of {job.name}", lambda: job.events("step"))

    def wait_until_they_share(self, jobs: Sequence[Trainer]) -> None:
        """Wait until all are profiled, and assigned for good at the same time. Raises SharingFailed."""
        try:
            self.wait_until("jobs that share", lambda: all(map(self.shares, jobs)))
        except SharingFailed as error:
            found = "\n".join(
                f"{self.why(job)}{job.output()[-1000:]}" for job in jobs if not self.shares(job)
            )
            raise SharingFailed(f"{error}:\n{found}") from None

    def shares(self, job: Trainer) -> bool:
        """Whether the job is profiled, and assigned for good."""
        return SHARES in self.why(job)

    def why(self, job: Trainer) -> str:
        """What flexod says of the job."""
        return self.lab.run(["flexo", "why", str(job.job_id)], check=False).stdout

    def end(self, jobs: Sequence[Trainer]) -> None:
        """Cancel jobs, and wait until Slurm has none of them."""
        numbers = {str(job.job_id) for job in jobs}
        self.lab.run(["scancel", "--quiet", *numbers], check=False)
        self.wait_until("the jobs' ends", lambda: not numbers & self._queued())

    def _queued(self) -> set[str]:
        return set(self.lab.run(["squeue", "--noheader", "--format=%A"]).stdout.split())

    # --- flexod -----------------------------------------------------------------------------------

    def configure(self, **settings: str) -> None:
        """Write these keys of [aggregation], and start flexod with them."""
        self.lab.stop_flexod()
        toml = self.lab.layout.flexo_toml
        head, _, _ = toml.read_text().partition("[aggregation]")
        keys = "".join(f"{key} = {value}\n" for key, value in {"enabled": "true", **settings}.items())
        toml.write_text(f"{head}[aggregation]\n{keys}")
        self.lab.start_flexod()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What flexod has told of these kinds, the oldest first."""
        options = [word for kind in kinds for word in ("--kind", kind)]
        told = self.lab.run(["flexo", "events", *options, "--json"], check=False).stdout
        found: list[dict[str, Any]] = json.loads(told)["events"] if told else []
        return sorted(found, key=lambda event: float(event["at"]))

    def wait_until(self, what: str, condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Wait for `condition`. Raises SharingFailed."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise SharingFailed(f"waited {within_s:.0f} s for {what}")
            time.sleep(1.0)


@contextlib.contextmanager
def sharing_lab(accounts: list[str], tell: Callable[[str], None]) -> Iterator[SharingLab]:
    """The lab, with these Slurm accounts; it is down afterwards. Raises PartMissing and LabError."""
    if reason := why_unavailable(Profile.ACCOUNTING):
        raise PartMissing(reason)
    spec = LabSpec(
        name=f"bench-sharing-{os.getpid()}",
        nodes=NODES,
        gpus_per_node=MOST_JOBS,
        cpus_per_node=32,
        infer_nodes=0,
        profile=Profile.ACCOUNTING,
        flexod=False,
        aggregation=True,
    )
    tell("sharing: brings up a Slurm cluster with slurmdbd")
    lab = bring_up(spec)
    try:
        _check_service_account(lab)
        for account in accounts:
            _sacctmgr(lab, "add", "account", account, f"Description={account}")
            _sacctmgr(lab, "add", "user", "root", f"Account={account}")
        yield SharingLab(lab, tell)
    finally:
        lab.down()


def _check_service_account(lab: Lab) -> None:
    account = lab.spec.flexod_account
    command = [sys.executable, "-c", "import horovod_elastic"]
    if lab.run(command, user=account, check=False, cwd=Path("/")).returncode != 0:
        where = f"move the checkout {SCRIPT.parents[3]} to where others may read"
        raise PartMissing(f"'{account}', who runs the Aggregators, cannot read the code: {where}")


def _sacctmgr(lab: Lab, *words: str) -> None:
    lab.run(["sacctmgr", "--immediate", "--quiet", *words])
