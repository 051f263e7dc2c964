"""Replays the decisions of Sia's simulator in ours: whether both mean the same by the same decisions.

A job that Sia moves to other nodes of the same type, with the same number of GPUs on each, loses nothing in
Sia's simulator. In ours every move has its price. Therefore the replay has one node for each GPU, and another
one beside it: a job whose GPUs keep their shape stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from flexo.model.training import NodeShare, TrainingJob
from flexo.policies.base import Jobs, Policy, Target, Targets
from flexo.policies.placement import Placement
from flexo_simulation.engine import simulate
from flexo_simulation.formats import sia, sia_log
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.sia import SiaCluster
from flexo_simulation.formats.sia_log import Given, SiaLog
from flexo_simulation.scenario import Scenario

_SPARE: Final = 2
"""Nodes of the replay for each GPU: a job that ends later than in the log still has its nodes."""
_WAITS: Final = Given("", (), 0)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Mean completion times of one workload, in seconds: by Sia's simulator, and by ours."""

    sia_s: float
    ours_s: float
    unfinished: int
    """Jobs that did not end in ours."""

    @property
    def difference(self) -> float:
        """Ours, relative to Sia's: 0.01 is 1% longer."""
        return self.ours_s / self.sia_s - 1


def replay(folder: Path, trace: str, number: int, cluster: SiaCluster, log: Path) -> Replayed:
    """Replay the log of one workload of the artifact in `folder`. Raises BadTrace."""
    decided = sia_log.read(log)
    _check(decided, cluster, log)
    roomy = SiaCluster(
        cluster.name,
        tuple(replace(group, count=_SPARE * group.count * group.gpus) for group in cluster.nodes),
    )
    workload = sia.read(folder, trace, number, roomy)
    number_of = {job.name: job.job_id for job in workload.jobs}
    if unknown := decided.jct_s.keys() - number_of.keys():
        raise BadTrace((f"{log}: {min(unknown)} is no job of {workload.name}",))
    rounds = {
        at: {number_of[name]: given for name, given in jobs.items()} for at, jobs in decided.rounds.items()
    }
    policy = Replay(rounds, roomy.type_of)
    result = simulate(workload, policy, Scenario(roomy.nodes, interval_s=sia.INTERVAL_S)).result
    return Replayed(decided.mean_jct_s, result.avg_jct_s, result.jobs - result.finished)


def _check(log: SiaLog, cluster: SiaCluster, path: Path) -> None:
    """Raise BadTrace if the log gives more GPUs than the cluster has."""
    have = Counter[str]()
    for group in cluster.nodes:
        have[group.gpu_type] += group.count * group.gpus
    for at, jobs in log.rounds.items():
        given = Counter[str]()
        for each in jobs.values():
            given[each.gpu_type] += sum(each.workers)
        for gpu_type, gpus in given.items():
            if gpus > have[gpu_type]:
                raise BadTrace(
                    (f"{path}: at {at:.0f} s it gives {gpus} GPUs of {gpu_type}, of {have[gpu_type]}",)
                )


@dataclass(frozen=True)
class Replay(Policy):
    """The policy that does what a log says. A job of which the log says nothing keeps what it has."""

    name: ClassVar[str] = "replay"
    uses_running_times: ClassVar[bool] = False

    rounds: Mapping[float, Mapping[int, Given]]
    """Per time of a decision: what each job is to have, by its number."""
    type_of: Mapping[str, str]
    """The GPU type of each node, by name."""

    def targets(self, jobs: Jobs, placement: Placement) -> Targets:
        """The changes of this round: shares, or only the batch."""
        decided = self.rounds.get(jobs.at, {})
        wanted = {job.key: decided[job.key.job_id] for job in jobs.training if job.key.job_id in decided}
        staying = {
            job.key for job in jobs.training if job.key not in wanted or self._keeps(job, wanted[job.key])
        }
        taken = {share.node for job in jobs.training if job.key in staying for share in job.shares}
        free = self._free(taken)
        changed: list[Target] = []
        for job in jobs.training:
            given = wanted.get(job.key, _WAITS)
            if job.key not in staying:
                shares = tuple(NodeShare(next(free[given.gpu_type]), workers) for workers in given.workers)
            elif given.workers and given.batch != job.samples:
                shares = job.shares
            else:
                continue
            workers = placement.put(job.key, shares)
            changed.append(Target(job.key, workers, "the log says so", given.batch))
        return Targets(tuple(changed))

    def _keeps(self, job: TrainingJob, given: Given) -> bool:
        """Whether the job has GPUs of this type and shape already."""
        if tuple(share.workers for share in job.shares) != given.workers:
            return False
        return all(self.type_of[share.node] == given.gpu_type for share in job.shares)

    def _free(self, taken: set[str]) -> Mapping[str, Iterator[str]]:
        """Per GPU type: the nodes that nobody has."""
        free: dict[str, list[str]] = {gpu_type: [] for gpu_type in self.type_of.values()}
        for name, gpu_type in self.type_of.items():
            if name not in taken:
                free[gpu_type].append(name)
        return {gpu_type: iter(names) for gpu_type, names in free.items()}
