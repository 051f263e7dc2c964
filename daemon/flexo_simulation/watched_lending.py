"""Lending in a simulation: the code that flexod runs, with a record of its results."""

from __future__ import annotations

import math
from dataclasses import replace

from flexo.clusters.simulated.nodes import BORROWED, INFERENCE, NodeGroup
from flexo.loaning.forecast import Predictor
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingPlan, LendingSettings, View
from flexo.model.loans import Loan, PastLoan
from flexo.model.training import TrainingJob
from flexo_simulation.inference import Inference, TraceDemand


class WatchedLending(Lending):
    """Lending that records the results of its cycles. Mutable: belongs to one simulation."""

    def __init__(self, inference: Inference, satellite_partition: str = "") -> None:
        """`satellite_partition`: that of satellites on servers on loan; "": they have none of their own."""
        super().__init__(
            LendingSettings(
                INFERENCE,
                BORROWED,
                inference.rules,
                inference.timing,
                inference.edit_interval_s,
                satellite_partition=satellite_partition,
            ),
            TraceDemand(inference.demand),
            forecast=_forecast(inference) if inference.forecast else None,
            chooser=inference.chooser,
        )
        self._inference = inference
        self.loans: tuple[Loan, ...] = ()
        """The loans that stand."""
        self.ended: list[PastLoan] = []
        """The loans that have ended, in the order of their ends."""

    def cycle(self, view: View) -> LendingPlan:
        """Run one cycle as flexod does, and record its loans."""
        if self._inference.only_asked:
            rules = replace(self._inference.rules, most_servers=servers_asked(view, self._inference.servers))
            self._settings = replace(self._settings, rules=rules)
        plan = super().cycle(view)
        self.loans = plan.loans
        self.ended += plan.ended
        return plan


def servers_asked(view: View, servers: NodeGroup) -> int:
    """The servers that jobs are on, and as many as would hold what jobs ask for beyond what they have.

    Counted are jobs that may run on the servers, and have fewer workers than they can use.
    """
    names = {node.name for node in view.nodes if INFERENCE in node.partitions}
    on = {share.node for job in view.training for share in job.shares if share.node in names}
    gpus = sum(_gpus_asked(job) for job in view.training if _may_use(job, servers.gpu_type, names))
    return len(on) + math.ceil(gpus / servers.gpus)


def _gpus_asked(job: TrainingJob) -> float:
    """GPUs that a waiting job needs to start, or that a running one could grow by."""
    most = job.workers.max if job.shares else job.workers.min
    return float(max(0, most - sum(share.workers for share in job.shares)) * job.shape.gpus)


def _may_use(job: TrainingJob, gpu_type: str, names: set[str]) -> bool:
    """Whether more of the servers are of use to the job: a run stays on one type unless it may mix them."""
    if job.heterogeneous or job.shape.gpu_type in ("", gpu_type):
        return True
    return job.fungible and (not job.shares or any(share.node in names for share in job.shares))


def _forecast(inference: Inference) -> Predictor:
    """A forecast that has learnt the trace's demand before the simulation begins."""
    predictor = Predictor(interval_s=inference.rules.interval_s)
    for at, servers in inference.demand.between(-float("inf"), 0.0):
        predictor.note(at, servers)
    return predictor
