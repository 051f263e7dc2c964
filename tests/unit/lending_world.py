"""A controller that lends, with the fake cluster of controller_world.py and three inference servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller_world import FakeCluster, FakeLeader, FakeLeaders, World, slurm_job
from flat_records import change_node

from flexo.clusters.base import ActionRefused, ClusterState
from flexo.controller import Controller
from flexo.loaning.settings import LoaningSettings
from flexo.model.loans import LoanState
from flexo.model.nodes import Partition
from flexo.model.queue import JobState
from flexo.service.lending_setup import lending_of

INFERENCE = ("i1", "i2", "i3")


class LendingCluster(FakeCluster):
    """A fake cluster of one training node and three inference servers, of the same GPU type or another."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"t1": 4} | dict.fromkeys(INFERENCE, 4)
        self.types = dict.fromkeys(INFERENCE, "")
        self.borrowed: frozenset[str] = frozenset()
        self.edits: list[frozenset[str]] = []
        self.requeued: list[int] = []
        self.refuses_edits = ""
        self.satellites_in = "borrowed"

    def submit(self, base, owner, grant_id, node, workers, time_limit_s) -> int:
        job_id = super().submit(base, owner, grant_id, node, workers, time_limit_s)
        if node in INFERENCE:
            self.add(replace(self.queue[job_id], partitions=(self.satellites_in,)))
        return job_id

    def observe(self) -> ClusterState:
        state = super().observe()
        nodes = tuple(
            change_node(
                node, gpu_type=self.types.get(node.name, ""), partitions=self.partitions_of(node.name)
            )
            for node in state.nodes
        )
        training = frozenset(self.sizes) - set(INFERENCE)
        partitions = (
            Partition("infer", 20, frozenset(INFERENCE)),
            Partition("train", 10, training),
            Partition("flex", 1, training),
            Partition("borrowed", 1, self.borrowed),
        )
        return replace(state, nodes=nodes, partitions=partitions)

    def partitions_of(self, node: str) -> frozenset[str]:
        if node not in INFERENCE:
            return frozenset({"train", "flex"})
        return frozenset({"infer", "borrowed"} if node in self.borrowed else {"infer"})

    def lend(self, nodes: frozenset[str]) -> None:
        if self.refuses_edits:
            raise ActionRefused(self.refuses_edits)
        self.edits.append(nodes)
        self.borrowed = nodes

    def requeue(self, job: str) -> None:
        self.requeued.append(int(job))
        self.queue.pop(int(job), None)

    def inference(self, job_id: int, node: str = "") -> None:
        self.add(
            slurm_job(
                job_id,
                partitions=("infer",),
                state=JobState.RUNNING if node else JobState.PENDING,
                reason="None" if node else "Resources",
                nodes=(node,) if node else (),
                gpus=4,
                cpus=4,
            )
        )

    def start_inference(self) -> None:
        """Start pending inference jobs on servers where nothing runs, as Slurm would."""
        for job in list(self.queue.values()):
            if job.partitions == ("infer",) and job.state is JobState.PENDING:
                free = [node for node in INFERENCE if not self.held(node)]
                if free:
                    self.add(replace(job, state=JobState.RUNNING, nodes=(free[0],), reason="None"))


class LendingWorld(World):
    """A flexod that lends."""

    def __init__(self, directory, loaning=None, **controller) -> None:
        rules = {
            "enabled": True,
            "headroom_servers": 0.0,
            "hysteresis_servers": 0.0,
            "interval_s": 10.0,
            "edit_interval_s": 10.0,
            "rest_s": 0.0,
            "forecast": "none",
        }
        self.loaning = LoaningSettings(**(rules | (loaning or {})))
        self.controller_rules = controller
        super().__init__(directory, **controller)

    def restart(self) -> None:
        if not isinstance(self.cluster, LendingCluster):
            self.cluster = LendingCluster()
            self.leaders = FakeLeaders()
            self.settings = self.settings.model_copy(update={"loaning": self.loaning})
        super().restart()

    def new_controller(self, **more: Any) -> Controller:
        return super().new_controller(lending=lending_of(self.settings, self.event_store, None), **more)

    def fungible(self, job_id: int, *nodes: str) -> None:
        """Add a running base on servers on loan."""
        size = 2 * len(nodes)
        self.cluster.add(slurm_job(job_id, partitions=("borrowed",), nodes=nodes, gpus=size, cpus=size))

    def elastic(self, workers: str = "4-12") -> FakeLeader:
        """Add a job whose base fills t1, so that the job can only grow onto servers on loan."""
        return self.job(1, workers, "t1")

    @property
    def loans(self) -> dict[str, LoanState]:
        view = self.controller.loans()
        assert view is not None
        return {loan.node: loan.state for loan in view.loans}

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.event_store.events(None, 1000)[::-1] if event.kind == kind]
