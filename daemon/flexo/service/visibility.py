"""What a caller may see where the cluster hides users' jobs from each other: flexod hides them as well.

From root, flexod's own account, administrators and the users in [service] readers nothing is hidden. The
cluster may know others who see everything. flexod does not know them, and hides more rather than less.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from flexo.clusters.base import Privacy
from flexo.control.views import View
from flexo.model.queue import Principal
from flexo_protos.v1 import admin_pb2

_T = TypeVar("_T")
UNKNOWN: Final = Privacy(jobs=True, nodes=True)
"""What counts as hidden as long as the cluster has not said it."""


def privacy_of(view: View) -> Privacy:
    """What the cluster hides, as of the last poll."""
    return UNKNOWN if view.state is None else view.state.privacy


@dataclass(frozen=True, slots=True)
class Visibility:
    """What one caller may see."""

    caller: Principal
    hidden: Privacy
    """What is hidden from this caller; from some callers nothing is, whatever the cluster hides."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is hidden."""
        return not (self.hidden.jobs or self.hidden.nodes)

    def shows_job_of(self, owner: Principal | None) -> bool:
        """Whether the caller may see a job of `owner`. None: nobody knows whose it is."""
        return not self.hidden.jobs or owner == self.caller

    def of(self, view: View) -> View:
        """The view without what is hidden. Reasons of the caller's own jobs may name another job's number."""
        if self.is_whole:
            return view
        state, jobs, order, notes = view.state, view.jobs, view.order, view.notes
        if self.hidden.jobs:
            queue = tuple(job for job in (state.jobs if state else ()) if job.owner == self.caller)
            state = None if state is None else replace(state, jobs=queue)
            jobs = tuple(each for each in jobs if each.owner == self.caller)
            own = {job.key for job in queue}
            order = tuple(key for key in order if key in own)
            notes = tuple(note for note in notes if note.job in own)
        if state is not None and self.hidden.nodes:
            state = replace(state, nodes=())
        return replace(view, state=state, jobs=jobs, order=order, notes=notes)

    def cut_status(self, reply: admin_pb2.GetStatusReply, view: View) -> None:
        """Remove from `reply` what is hidden."""
        if self.hidden.jobs:
            own = self._own_jobs(view)
            _keep(reply.slow_gpus, lambda gpu: gpu.job_id in own)
            for each in reply.pool.aggregators if reply.HasField("pool") else ():
                _keep(each.job_ids, own.__contains__)
                if each.slurm_job_id not in own:
                    each.slurm_job_id, each.node = 0, ""
        if self.hidden.nodes:
            del reply.slow_gpus[:]

    def cut_loans(self, reply: admin_pb2.ListLoansReply, view: View) -> None:
        """Remove from `reply` what is hidden. Loans are of nodes."""
        if self.hidden.jobs:
            own = self._own_jobs(view)
            for loan in reply.loans:
                _keep(loan.bases, own.__contains__)
        if self.hidden.nodes:
            for loans in (reply.loans, reply.past, reply.left_alone):
                del loans[:]

    def _own_jobs(self, view: View) -> frozenset[int]:
        queue = view.state.jobs if view.state else ()
        return frozenset(job.job_id for job in queue if job.owner == self.caller)


def _keep(items: MutableSequence[_T], kept: Callable[[_T], bool]) -> None:
    for index in reversed(range(len(items))):
        if not kept(items[index]):
            del items[index]
