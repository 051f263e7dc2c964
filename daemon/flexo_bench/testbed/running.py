"""Runs the jobs and the inference demand of the testbed on a real lab, and watches who holds which GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from flexo_bench.fidelity.running import Life, life_of
from flexo_bench.fidelity.submitting import LabRunFailed, Submitted, submit
from flexo_bench.fidelity.workload import Job
from flexo_bench.testbed.figures import Course, Loans
from flexo_bench.testbed.workload import GPUS_EACH, SERVERS, Need
from flexo_demos.elastic.slurm import parse_jobs
from flexo_demos.loans import book
from flexo_demos.loans.book import LoanHistory
from flexo_demos.loans.looks import Look, nodes_of_partition
from flexo_lab import Lab, LabSpec
from flexo_lab.slurm_files import BORROWED_PARTITION, INFERENCE_PARTITION

NODES, GPUS = 4, 8
"""Training nodes, and V100 in each."""
BASELINE_SPEC = LabSpec(nodes=NODES, gpus_per_node=GPUS, gpu_type="v100", cpus_per_node=32, infer_nodes=0)
LENDING_SPEC = LabSpec(
    nodes=NODES, gpus_per_node=GPUS, gpu_type="v100", cpus_per_node=32,
    infer_nodes=SERVERS, infer_gpus=GPUS_EACH, infer_gpu_type="t4", loans=True,
)  # fmt: skip
CONTROLLER = {"min_resize_interval_s": "5.0", "order": '"policy"'}
LOANING = {
    "interval_s": "5.0", "rest_s": "10.0", "reclaim_s": "40.0", "preempt_within_s": "20.0",
    "save_within_s": "0.0", "force_within_s": "5.0", "most_per_interval": "8",
}  # fmt: skip
"""Times of lending. With a day in minutes, they are short; flexo allows no less than 30 s for a reclaim."""
GONE_S = 1800.0
"""Time limit for all jobs to end after the last submission."""
_POLL_S, _LOOK_S = 0.5, 3.0

Tell = Callable[[str], None]


@dataclass
class _Inference:
    """Keeps one Slurm job for each server that inference needs. Mutable."""

    lab: Lab
    needs: Sequence[Need]
    ids: list[int] = field(default_factory=list)
    """All its jobs ever, so that they are told from others."""
    serving: list[int] = field(default_factory=list)

    def serve(self, at: float) -> None:
        """Submit or cancel jobs, so that there are as many as inference needs at `at`.

        The newest are cancelled first.
        """
        needed = [need.servers for need in self.needs if need.at <= at][-1] if self.needs else 0
        leaving, self.serving = self.serving[needed:], self.serving[:needed]
        if leaving:
            self.lab.run(["scancel", "--quiet", *map(str, leaving)])
        for _ in range(needed - len(self.serving)):
            self.serving.append(self._submit())

    def _submit(self) -> int:
        ask = [f"--partition={INFERENCE_PARTITION}", "-N", "1", f"--gpus-per-node={GPUS_EACH}"]
        words = ["sbatch", "--parsable", *ask, "--output=/dev/null", "--wrap", "exec sleep 86400"]
        job_id = int(self.lab.run(words).stdout.split(";")[0])
        self.ids.append(job_id)
        return job_id


def run(lab: Lab, jobs: tuple[Job, ...], needs: tuple[Need, ...], folder: Path, tell: Tell) -> Course:
    """Submit all jobs at their times, and wait until all have ended. Raises LabRunFailed.

    `needs`: what inference needs over time; () if there is no inference cluster.
    """
    inference = _Inference(lab, needs)
    inference.serve(0.0)
    submitted: list[Submitted] = []
    looks: list[Look] = []
    loads: list[float] = []
    began, deadline = time.time(), time.time() + jobs[-1].at_s + GONE_S
    while len(submitted) < len(jobs) or any(job.ended_at() is None for job in submitted):
        now = time.time() - began
        while len(submitted) < len(jobs) and jobs[len(submitted)].at_s <= time.time() - began:
            job = jobs[len(submitted)]
            submitted.append(submit(lab, job, folder / str(job.number)))
            if len(submitted) == len(jobs):
                tell(f"all {len(jobs)} jobs are submitted")
        inference.serve(now)
        if not looks or time.time() - looks[-1].at >= _LOOK_S:
            looks.append(_look(lab, inference.ids))
            loads.append(os.getloadavg()[0])
        if time.time() > deadline:
            waits = [job.folder for job in submitted if job.ended_at() is None]
            raise LabRunFailed(f"{len(waits)} jobs had not ended after {GONE_S:.0f} s: see {waits[0]}")
        time.sleep(_POLL_S)
    looks.append(_look(lab, inference.ids))
    lives = tuple(life_of(job, submitted[0].at) for job in submitted)
    loans = loans_of(looks, _history(lab), lives, submitted[0].at) if needs else None
    return Course(lives, loans, fmean(loads), max(loads))


def _look(lab: Lab, inference: Sequence[int]) -> Look:
    at = time.time()
    text = lab.run(["scontrol", "-d", "show", "job"]).stdout
    partition = lab.run(["scontrol", "--oneliner", "show", "partition", BORROWED_PARTITION]).stdout
    lent = nodes_of_partition(partition) if lab.spec.loans else frozenset()
    return Look(at, lent, 0, parse_jobs(text), frozenset(inference), 0)


def _history(lab: Lab) -> LoanHistory:
    return book.parse(lab.run(["flexo", "loans", "--all", "--json"]).stdout)


def loans_of(looks: Sequence[Look], history: LoanHistory, lives: Sequence[Life], zero: float) -> Loans:
    """The figures of loans: use by Slurm's view at each look, the rest by flexod's list.

    Time counts until the last submission, at `zero` and the last `Life.submitted_at`.
    """
    servers = tuple(f"i{number}" for number in range(1, SERVERS + 1))
    held = away = 0.0
    until = zero + max(life.submitted_at for life in lives)
    for before, after in pairwise(looks):
        seconds = max(0.0, min(after.at, until) - before.at)
        gone = [name for name in servers if name in before.lent or before.trains_on(name)]
        away += seconds * len(gone)
        held += seconds * before.gpus_lent_in_use(servers)
    on_loan = {
        job.job_id
        for look in looks
        for job in look.jobs
        if job.job_id not in look.inference
        and not job.satellite
        and any(node in servers for node, _ in job.gpus)
    }
    back = [loan for loan in history.returned if loan.called_back_at is not None]
    return Loans(
        use=held / (away * GPUS_EACH) if away else 0.0,
        loans=len(history.returned) + len(history.standing),
        reclaims=len({loan.called_back_at for loan in back}),
        servers_reclaimed=len(back),
        jobs_on_loan=len(on_loan),
        away_share=away / (SERVERS * (until - zero)),
    )
