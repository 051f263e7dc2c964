"""Carries one round out on the soak's cluster, and judges it as a chaos run is judged."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from chaos import victims
from chaos.system.evidence import Strike, Violation
from chaos.system.judge import judge
from chaos.system.link import Link
from chaos.system.looks import SlurmJob, latest
from chaos.system.plan import Deed, Target
from chaos.system.run import LEAVES_S, Run, keep_all, prepare
from chaos.system.stage import observed
from training.elastic_jobs import Job, submit

from flexo_lab import Lab, LabCommandFailed
from soak.rounds import Doomed, End, Restart, Round

RESTARTED = " restarted"
"""How what was struck ends where a daemon was restarted in order."""
SETTLES_S = 3.0
CANCELLED_AFTER_S = 4.0
ENDS_S = 90.0
"""A doomed job, from its submission: it has to start, where others are in the way."""
_SCRIPT = "counting.py"
_BATCHES = 600
"""It ends by itself after a minute, should nobody get to cancel it."""
_EXIT_CODE = 3
"""Of that script, where it is told to fail."""
_POLL_S = 0.5


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Played:
    """One round."""

    seconds: float
    jobs: int
    """Elastic ones and others, without satellites."""
    satellites: int
    strikes: tuple[Strike, ...]
    violations: tuple[Violation, ...]


@dataclass
class _Besides:
    """What a round has besides a chaos run."""

    run: Run
    jobs: list[tuple[Doomed, int, Path]] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    """Jobs of whose end slurmctld does not know."""

    def doom(self, what: Doomed) -> None:
        """Submit a job that does not complete, and see it end as it should."""
        folder = self.run.folder / what.name
        folder.mkdir()
        job = self._patiently(lambda: self._submit(what, folder))
        if job is None:
            return
        self.jobs.append((what, job.job_id, folder))
        if what.end is End.CANCELLED:
            self._wait(what, job.job_id, lambda shown: shown.runs)
            self.run.hands.over.wait(CANCELLED_AFTER_S)
            self._cancel(what, job.job_id)
        self._wait(what, job.job_id, lambda shown: shown.over)

    def _cancel(self, what: Doomed, job_id: int) -> None:
        # By its name too: slurmctld, killed, may have forgotten the job and given another one its number.
        scancel = ["scancel", f"--name={what.name}", str(job_id)]
        self._patiently(lambda: self.run.stage.lab.run(scancel))

    def _submit(self, what: Doomed, folder: Path) -> Job:
        shutil.rmtree(folder / "logs", ignore_errors=True)  # of an earlier try
        fail = ("--fail", "in the loop") if what.end is End.FAILS else ()
        return submit(
            self.run.stage.lab, folder, _SCRIPT, "--batches", str(_BATCHES), *fail,
            options=(f"--job-name={what.name}", "-n1", "--gpus-per-task=1"), elastic="1-2",
            environment=[f"FLEXO_DAEMON={self.run.stage.daemon_address}"],
        )  # fmt: skip

    def clear(self) -> None:
        """Cancel what slurmctld, killed, takes for running because it has forgotten the end of it."""
        if not any(
            strike.deed is Deed.KILL and strike.target is Target.SLURMCTLD for strike in self.run.strikes
        ):
            return
        left = [
            (what, job_id) for what, job_id, _ in self.jobs if (job := self._shown(job_id)) and not job.over
        ]
        for what, job_id in left:
            self.forgotten.add(job_id)
            self.run.stage.lab.run(["scancel", f"--name={what.name}", str(job_id)], check=False)

    def restart(self, daemon: Restart) -> None:
        """As an administrator does: nothing is lost with it."""
        hands, lab, at = self.run.hands, self.run.stage.lab, time.time()
        hands.wanted.discard(daemon)
        if daemon is Restart.FLEXOD:
            lab.restart_flexod()
        else:
            lab.restart_slurmctld()
        hands.wanted.add(daemon)
        # Not a kill in the checks' sense, after which Slurm may have forgotten something.
        self.run.strikes.append(Strike(at, time.time(), Target(daemon), Deed.HOLD, f"{daemon}{RESTARTED}"))

    def violations(self) -> list[Violation]:
        """Of doomed jobs that did not end as they should."""
        found = []
        for what, job_id, _ in self.jobs:
            job = self._shown(job_id)
            if job is None or job.name != what.name or job_id in self.forgotten:
                continue  # slurmctld was killed before it had written that down: chaos.system.bounds
            wanted = ("FAILED", f"{_EXIT_CODE}:0") if what.end is End.FAILS else ("CANCELLED", job.exit_code)
            if (job.state, job.exit_code) != wanted:
                ended = f"{job.state} {job.exit_code} {job.reason}"
                found.append(
                    Violation("jobs that fail end as such", f"{what.name} ({job_id}), {what.end}: {ended}")
                )
        return found

    def leftovers(self) -> tuple[str, ...]:
        """Processes of doomed jobs that are there a while after their end."""
        deadline = time.monotonic() + LEAVES_S
        while (left := self._left_now()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return left

    def _left_now(self) -> tuple[str, ...]:
        return tuple(
            f"process {pid} of {what.name}"
            for what, _, folder in self.jobs
            for pid in sorted(victims.everything(folder))
        )

    def _patiently(self, command: Callable[[], _T]) -> _T | None:
        """Again and again while slurmctld is away; None if the round ends first."""
        while not self.run.hands.over.is_set():
            try:
                return command()
            except (LabCommandFailed, subprocess.TimeoutExpired):
                self.run.hands.over.wait(1.0)
        return None

    def _wait(self, what: Doomed, job_id: int, until: Callable[[SlurmJob], bool]) -> None:
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline and not self.run.hands.over.wait(_POLL_S):
            job = self._shown(job_id)
            if job is not None and (job.name != what.name or until(job)):
                return

    def _shown(self, job_id: int) -> SlurmJob | None:
        last = latest(self.run.stage.observed.read_text())
        return last.job(job_id) if last else None


def play(this: Round, lab: Lab, links: Mapping[Target, Link], keep: Path) -> Played:
    """Carry it out. What was written is copied to `keep` if something is wrong; nothing of it stays."""
    began = time.monotonic()
    looks, folder = lab.directory / "observed.jsonl", lab.scratch / f"round{this.number}"
    with observed(lab, links, looks) as place:
        run = prepare(this.plan, place, folder)
        run.settles_s = SETTLES_S
        besides = _Besides(run)
        run.more = [(each.at_s, partial(besides.doom, each)) for each in this.doomed]
        run.more += [(at_s, partial(besides.restart, daemon)) for at_s, daemon in this.restarts]
        run.play()
        besides.clear()
        evidence = run.evidence((*run.leftovers(), *besides.leftovers()))
        violations = (*run.wrong, *besides.violations(), *judge(evidence))
        if violations:
            keep_all(place, folder, keep, evidence)
    looks.unlink()
    shutil.rmtree(folder)
    satellites = {job.job_id for look in evidence.looks for job in look.jobs if job.tag and job.runs}
    jobs = len(evidence.submitted) + len(besides.jobs)
    return Played(time.monotonic() - began, jobs, len(satellites), evidence.strikes, violations)
