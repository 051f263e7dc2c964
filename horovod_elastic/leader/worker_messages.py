"""Passes workers' messages to the parts of the leader that need them. Runs in the leader's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flexo_protos.v1 import workers_pb2
from horovod_elastic.leader.accounting import Accounting
from horovod_elastic.leader.agent_links import AgentLinks
from horovod_elastic.leader.membership.commands import Command
from horovod_elastic.leader.membership.membership import Membership
from horovod_elastic.leader.membership.roster import Running, WorkerStatus
from horovod_elastic.leader.oversight import Oversight
from horovod_elastic.phase import Phase
from horovod_elastic.shards import Answer, ShardServer
from horovod_elastic.trace import Trace, say


class WorkerMessages:
    """See the module.

    `carry_out`: carries out membership's commands. `inherited`: an earlier leader has handed out shards.
    """

    def __init__(
        self,
        membership: Membership,
        agents: AgentLinks,
        oversight: Oversight,
        accounting: Accounting,
        trace: Trace,
        carry_out: Callable[[list[Command]], None],
        *,
        inherited: bool,
    ) -> None:
        self._membership = membership
        self._agents = agents
        self._oversight = oversight
        self._accounting = accounting
        self._trace = trace
        self._carry_out = carry_out
        self._entered: dict[str, int] = {}
        """The last generation that each worker has reported to be in."""
        self._epoch = 0
        """The epoch of those who train; 0: not known."""
        self._batches: tuple[int, ...] = ()
        """The batches of their DataLoaders."""
        self._told_epochs: dict[str, tuple[int, tuple[int, ...]]] = {}
        """The epoch and the batches that each newcomer was told last."""
        self._shards = ShardServer()
        self._shards_wait = inherited
        """Whether shards are held back until the leader knows which worker holds which samples."""
        if inherited:
            self._shards.take_over({""})

    def goes_on_from(self, epoch: int, batches: Sequence[int]) -> None:
        """Note where training goes on: newcomers of a paused job go as far as that, and no further."""
        self._epoch, self._batches = epoch, tuple(batches)

    def tick(self) -> None:
        """Begin to hand out shards once the leader knows all workers of the generation."""
        if self._shards_wait and not self._membership.taking_over:
            self._shards_wait = False
            self._shards.take_over(worker.worker_id for worker in self._membership.present())

    def found(self, agent: str, worker: workers_pb2.RunningWorker) -> Running:
        """Note a worker that lives already when its agent attaches; return it as membership's type."""
        self._agents.homes[worker.worker_id] = agent
        self._entered[worker.worker_id] = worker.status.generation
        return Running(worker.worker_id, worker.slot, worker.newcomer, _status(worker.status))

    def said(self, worker_id: str, message: workers_pb2.FromWorker) -> None:
        """Handle a worker's message."""
        now, members = time.monotonic(), self._membership
        kind = message.WhichOneof("body")
        if kind == "status":
            self._trace_status(worker_id, message.status)
            if not members.taking_over:
                self._accounting.paused(message.status.generation, message.status.paused_s)
            self._carry_out(members.worker_stands(worker_id, _status(message.status), now))
            self._tell_epoch(worker_id, message.status)
            self._hand_out(self._shards.stands(worker_id, message.status.held))
            self._oversight.stands(worker_id, message.status, now)
        elif kind == "shards_wanted":
            self._hand_out(self._shards.wanted(worker_id, message.shards_wanted))
        elif kind == "shard_ledger":
            self._hand_out(self._shards.ledger(message.shard_ledger))
        elif kind == "task_done":
            self._oversight.task_done(worker_id, message.task_done)
        elif kind == "prepared":
            prepared = message.prepared
            self._trace.event(
                "prepared", worker=worker_id, generation=prepared.generation, failure=prepared.failure
            )
            if prepared.failure:
                which = f"worker {worker_id} (generation {prepared.generation})"
                say(f"{which} cannot be connected: {prepared.failure}")
            self._carry_out(members.worker_prepared(worker_id, prepared.generation, prepared.failure, now))
        elif kind == "accepted":
            said = message.accepted
            self._carry_out(
                members.worker_accepted(worker_id, said.generation, said.at, said.boundary, said.passed, now)
            )

    def exited(self, worker_id: str, exit_code: int, why: str) -> None:
        """Handle the end of a worker's process."""
        self._trace.event("left", worker=worker_id, exit_code=exit_code, why=why)
        self.forget(worker_id)
        self._carry_out(self._membership.worker_exited(worker_id, exit_code, time.monotonic()))

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone, or whose agent is gone."""
        self._agents.homes.pop(worker_id, None)
        self._entered.pop(worker_id, None)
        self._told_epochs.pop(worker_id, None)
        self._oversight.worker_gone(worker_id)
        self._hand_out(self._shards.worker_gone(worker_id))

    def _tell_epoch(self, worker_id: str, status: workers_pb2.WorkerStatus) -> None:
        """Tell newcomers the epoch and batches of those who train, of whom `worker_id` may be one."""
        worker = self._membership.worker(worker_id)
        if worker is None:
            return
        if worker.member:
            self._told_epochs.pop(worker_id, None)
            self._epoch = max(self._epoch, status.epoch)
            self._batches = tuple(status.batches) or self._batches
        else:
            self._told_epochs.setdefault(worker_id, (0, ()))
        news = self._epoch, self._batches
        for newcomer, told in self._told_epochs.items():
            if told != news:
                self._told_epochs[newcomer] = news
                epoch = workers_pb2.Epoch(number=self._epoch, batches=self._batches)
                self._agents.tell_worker(newcomer, workers_pb2.ToWorker(epoch=epoch))

    def _hand_out(self, answers: list[Answer]) -> None:
        for worker_id, shards in answers:
            self._agents.tell_worker(worker_id, workers_pb2.ToWorker(shards=shards))

    def _trace_status(self, worker_id: str, status: workers_pb2.WorkerStatus) -> None:
        known = self._entered.get(worker_id, -1)
        if known < 0 and status.phase == workers_pb2.WORKER_PHASE_READY:
            self._entered[worker_id] = 0
            self._trace.event("ready", worker=worker_id)
        elif status.phase == workers_pb2.WORKER_PHASE_TRAINING and status.generation > known:
            self._entered[worker_id] = status.generation
            self._trace.event("entered", worker=worker_id, generation=status.generation, rank=status.rank)


def _status(said: workers_pb2.WorkerStatus) -> WorkerStatus:
    return WorkerStatus(
        phase=Phase(said.phase or Phase.STARTING.value),
        generation=said.generation,
        rank=said.rank,
        size=said.size,
        commits=said.commits,
        progress=said.progress,
        boundary=said.boundary,
        in_loop=said.in_loop,
        holding=said.holding,
        prepared=said.prepared,
        called=said.called,
        going=said.going,
        layout=said.layout,
        fixed_why=said.fixed_why,
        told_first=said.told_first,
        outlives=said.outlives,
    )
