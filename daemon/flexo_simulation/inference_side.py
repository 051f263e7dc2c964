"""The inference cluster of a running simulation: it uses the servers that it needs, and lends others.

It waits until a deadline. Then it takes its server back, whatever is on it, as Slurm's priority tiers would,
and counts the deadline as missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.model.training import NodeShare, TrainingJob
from flexo_simulation.inference import Inference
from flexo_simulation.loan_story import LoanStory, Moment
from flexo_simulation.watched_lending import WatchedLending


class InferenceSide:
    """The inference cluster's state and story. Mutable: belongs to one simulation."""

    def __init__(self, inference: Inference, cluster: SimulatedCluster) -> None:
        """`cluster` has the inference servers, unless none is ever lent."""
        self.lending = WatchedLending(inference) if inference.lends else None
        self._inference = inference
        self._cluster = cluster
        self._servers = cluster.inference
        self._at = 0.0
        self._needed = inference.demand.at(0.0)
        self._course = [Moment(0.0, self._needed, self._use(), 0, 0)]
        self._preempted: list[int] = []
        self._emptied_aside: set[tuple[float, str]] = set()
        self._missed = 0
        self._vacated: set[tuple[str, float | None]] = set()
        """Servers that were seen empty, with the start of their reclaim."""

    @property
    def again_at(self) -> float:
        """Time at which lending has something to do even if nothing happens; infinite: nothing is lent."""
        at = None if self.lending is None else self.lending.again_at
        return math.inf if at is None else at

    def look(self, now: float) -> None:
        """Advance the demand to `now`, and record what has happened to the servers."""
        for at, needed in self._inference.demand.between(self._at, now):
            self._needed = needed
            self._note(at)
        self._at = now
        self._note(now)

    def _note(self, at: float) -> None:
        last = self._course[-1]
        away = self._servers.away if self._servers else 0
        used = last.used
        if self._needed != last.needed or away != last.away:
            used = self._use()
        moment = Moment(at, self._needed, used, away, self._cluster.gpus_held_on_loan)
        if moment.at == last.at:
            self._course[-1] = moment
        elif moment.state != last.state:
            self._course.append(moment)

    def _use(self) -> int:
        """Use as many servers as are needed and available. Returns their number."""
        needed = math.ceil(self._needed)
        if self._servers is None:
            return min(needed, self._inference.servers.count)
        return self._servers.use(needed)

    def take_overdue(self, now: float) -> bool:
        """Take every server that training should have left by now. Returns whether there was one."""
        if self.lending is None or self._servers is None:
            return False
        overdue = [
            loan.node
            for loan in self.lending.loans
            if loan.deadline_at is not None and loan.deadline_at <= now and self._servers.held(loan.node)
        ]
        for name in overdue:
            self._missed += 1
            self._cluster.take_back(name)
        return bool(overdue)

    def vacated(self) -> bool:
        """Whether a server under reclaim has become empty since the last call."""
        if self.lending is None or self._servers is None:
            return False
        empty = {
            (loan.node, loan.called_back_at)
            for loan in self.lending.loans
            if loan.closed and not self._servers.held(loan.node)
        }
        news, self._vacated = not empty <= self._vacated, empty
        if news:
            self.lending.look_again()
        return news

    def hosts(self, shares: Sequence[NodeShare]) -> bool:
        """Whether any of the shares is on an inference server."""
        servers = self._servers
        return servers is not None and any(share.node in servers for share in shares)

    def preempted(self, job: TrainingJob) -> None:
        """Record that `job` has lost all its workers, if it had some on a server under reclaim."""
        if self.lending is None or self._servers is None:
            return
        closed = {loan.node for loan in self.lending.loans if loan.closed}
        nodes = [share.node for share in job.shares]
        if closed.isdisjoint(nodes):
            return
        self._preempted.append(job.key.job_id)
        self._emptied_aside.update(
            (self._at, name)
            for name in nodes
            if name in self._servers and name not in closed and not self._servers.held(name)
        )

    def story(self) -> LoanStory:
        """The story so far."""
        lending = self.lending
        return LoanStory(
            servers=self._inference.servers.count,
            gpus_each=self._inference.servers.gpus,
            course=tuple(self._course),
            lent=self._servers.times_lent if self._servers else 0,
            past=tuple(lending.ended) if lending else (),
            preempted=tuple(self._preempted),
            emptied_aside=len(self._emptied_aside),
            missed=self._missed,
        )
