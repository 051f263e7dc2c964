"""The inference cluster of a simulation under way: it takes what it needs of its servers, and lends others.

It is patient until a deadline: then it takes its server back whatever is on it, as Slurm's priority tiers
would, and that deadline was missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexo.clusters.simulated.cluster import SimulatedCluster
from flexo.model.training import Share, TrainingJob
from flexo_simulation.inference import Inference
from flexo_simulation.loan_story import LoanStory, Moment
from flexo_simulation.watched_lending import WatchedLending


class InferenceSide:
    """Mutable: belongs to one simulation."""

    def __init__(self, inference: Inference, cluster: SimulatedCluster) -> None:
        """`cluster` has its servers, unless none is ever lent."""
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
        """Servers seen empty, and when they were called back."""

    @property
    def again_at(self) -> float:
        """When lending has something to do although nothing happens; infinite where nothing is lent."""
        at = None if self.lending is None else self.lending.again_at
        return math.inf if at is None else at

    def look(self, now: float) -> None:
        """Let its demand go on until `now`, and see what has happened to its servers."""
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
        """Use what is needed, as far as it is there; how many servers that is."""
        needed = math.ceil(self._needed)
        if self._servers is None:
            return min(needed, self._inference.servers.count)
        return self._servers.use(needed)

    def take_overdue(self, now: float) -> bool:
        """Take every server that training should have left by now; whether there was one."""
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
        """Whether a server that is wanted back has become empty since this was last asked."""
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

    def hosts(self, shares: Sequence[Share]) -> bool:
        """Whether any of them is on an inference server."""
        servers = self._servers
        return servers is not None and any(share.node in servers for share in shares)

    def preempted(self, job: TrainingJob) -> None:
        """`job` has just lost all that it had: noted where that vacates a server that is wanted back."""
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
        """All that has happened."""
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
