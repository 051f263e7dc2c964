"""One lending cycle in the making: the cluster as the cycle sees it, and the actions decided so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flexo.loaning.loan_ledger import Entry, LoanEvent, LoanLedger, Truth
from flexo.loaning.orchestrator import Picture, Rules
from flexo.loaning.partition import waits_for_servers
from flexo.loaning.reclaim_steps import Preempt, Save, Saving, ScaleIn, Timing
from flexo.loaning.resident_jobs import NOBODY, ResidentJobs, in_queue, on_allocating
from flexo.model.elastic import ElasticJob
from flexo.model.loans import Demand, LeftAlone, Loan, PastLoan
from flexo.model.nodes import Node, Partition
from flexo.model.queue import QueuedJob
from flexo.model.training import TrainingJob


@dataclass(frozen=True, slots=True)
class LendingSettings:
    """The administrator's settings of lending."""

    inference_partition: str = "infer"
    partition: str = "borrowed"
    """The partition in which servers on loan are, in addition to their own."""
    rules: Rules = field(default_factory=Rules)
    timing: Timing = field(default_factory=Timing)
    edit_interval_s: float = 60.0
    """Seconds between two edits of the partition: each may stop the cluster's scheduler for a moment."""
    static: bool = False
    """Whether the partition holds all inference servers and is never edited. Grants of satellites alone then
    decide what is lent."""
    satellite_partition: str = ""
    """The partition to which satellites on servers on loan are submitted; "": `partition`, as for bases."""


@dataclass(frozen=True, slots=True)
class View:
    """The input of a cycle: one poll of the cluster."""

    at: float
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    jobs: tuple[QueuedJob, ...] = ()
    elastic: tuple[ElasticJob, ...] = ()
    training: tuple[TrainingJob, ...] = ()
    """The jobs of a cluster that allocates; `jobs` and `elastic` are then empty."""
    saving: Saving = field(default_factory=Saving)


@dataclass(frozen=True, slots=True)
class Reading:
    """The facts behind the last decision, for people."""

    at: float = 0.0
    """Time of the last decision; 0: there was none yet."""
    size: int = 0
    """Usable inference servers, those on loan included."""
    demand: Demand | None = None
    """The demand; None: it is missing."""
    peak: float | None = None
    """The highest demand that is expected until a server lent now could be back."""
    why: str = ""
    trouble: str = ""
    """The reason why nothing more is lent at present; "": there is none."""


@dataclass(frozen=True, slots=True)
class LendingPlan:
    """The actions that are due now."""

    loans: tuple[Loan, ...] = ()
    """All loans that stand."""
    borrowed: frozenset[str] | None = None
    """The new content of the partition; None: leave it as it is."""
    scale_in: tuple[ScaleIn, ...] = ()
    save: tuple[Save, ...] = ()
    preempt: tuple[Preempt, ...] = ()
    ended: tuple[PastLoan, ...] = ()
    events: tuple[LoanEvent, ...] = ()
    reading: Reading = field(default_factory=Reading)
    left_alone: tuple[LeftAlone, ...] = ()
    """Servers that are not lent, because somebody took them back by hand."""


class LendingCycle:
    """The facts and actions of one call of `Lending.cycle`. Mutable."""

    def __init__(self, view: View, settings: LendingSettings) -> None:
        self.view = view
        self.now = view.at
        self._settings = settings
        partitions = {partition.name: partition for partition in view.partitions}
        self._inference = partitions.get(settings.inference_partition)
        self._borrowed = partitions.get(settings.partition)
        self._satellites = partitions.get(settings.satellite_partition)
        self._residents: Mapping[str, ResidentJobs] = {}
        self._looked_at: tuple[list[str], list[str]] = ([], [])
        self.scale_in: list[ScaleIn] = []
        self.save: list[Save] = []
        self.preempt: list[Preempt] = []
        self.ended: list[PastLoan] = []
        self.events: list[LoanEvent] = []

    @property
    def trouble(self) -> str:
        """The reason why demand and loans are not known at all; "": they are known."""
        if self._inference is None or not self._inference.nodes:
            return f"the cluster has no partition {self._settings.inference_partition} with nodes"
        return ""

    @property
    def has_partitions(self) -> bool:
        """Whether the partitions exist from which and into which servers are lent."""
        return not self.trouble and self._borrowed is not None

    @property
    def inference(self) -> frozenset[str]:
        """The servers of the inference cluster."""
        return self._inference.nodes if self._inference is not None else frozenset()

    @property
    def borrowed(self) -> frozenset[str]:
        """The nodes of the borrowed partition."""
        return self._borrowed.nodes if self._borrowed is not None else frozenset()

    def holds(self, wanted: frozenset[str]) -> bool:
        """Whether the borrowed partition, and that of satellites if there is one, have exactly these
        nodes."""
        return wanted == self.borrowed and (self._satellites is None or wanted == self._satellites.nodes)

    @property
    def no_more_because(self) -> str:
        """The reason why nothing can be lent at present, whatever the demand; "": something can."""
        if self._borrowed is None:
            return f"the cluster has no partition {self._settings.partition} to lend servers into"
        if not self._borrowed.up:
            return f"partition {self._settings.partition} is down, so nothing more is lent"
        return ""

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes of the cluster, by name."""
        return {node.name: node for node in self.view.nodes}

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Inference jobs that wait for servers."""
        partition = self._settings.inference_partition
        return frozenset(
            job.job_id
            for job in self.view.jobs
            if partition in job.partitions and job.satellite is None and waits_for_servers(job)
        )

    # The jobs on each server.

    def look(self, book: LoanLedger) -> None:
        """Find the jobs on each server. On a cluster that allocates, repeat this after the ledger has
        changed."""
        if self.view.training:
            lent = [entry.node for entry in book if not entry.loan.closed]
            closed = [entry.node for entry in book if entry.loan.closed]
            if self._looked_at != (lent, closed):
                self._looked_at = lent, closed
                self._residents = on_allocating(lent, closed, self.view.training)
        elif not self._residents:
            self._residents = in_queue(
                self.inference | {entry.node for entry in book},
                self.view.jobs,
                self.view.elastic,
                self._settings.partition,
                self._settings.inference_partition,
            )

    @property
    def residents(self) -> Mapping[str, ResidentJobs]:
        """The jobs on each server."""
        return self._residents

    def of(self, node: str) -> ResidentJobs:
        """The jobs on this server."""
        return self._residents.get(node, NOBODY)

    def truth(self) -> Truth:
        """The facts that the ledger is compared with."""
        return Truth(
            nodes=frozenset(self.nodes),
            inference=self.inference,
            borrowed=None if self._settings.static or self._borrowed is None else self.borrowed,
            occupied=frozenset(name for name in self.inference if not self.of(name).empty),
        )

    def why_unfit(self, name: str) -> str:
        """The reason why a server on loan has to go back, whatever the demand; "": it may stay."""
        inference = self.of(name).inference
        if inference:
            return f"inference job {inference[0]} runs there already"
        node = self.nodes.get(name)
        if node is not None and node.unusable and not node.in_order:
            return f"it is {node.unusable}, and its owner's to mend"
        return ""

    def plan(
        self,
        loans: tuple[Loan, ...],
        borrowed: frozenset[str] | None,
        reading: Reading,
        left_alone: tuple[LeftAlone, ...],
    ) -> LendingPlan:
        """The plan with the actions of this cycle."""
        return LendingPlan(
            loans,
            borrowed,
            tuple(self.scale_in),
            tuple(self.save),
            tuple(self.preempt),
            tuple(self.ended),
            tuple(self.events),
            reading,
            left_alone,
        )

    # Numbers for decisions, and the choice of servers.

    def picture(self, book: LoanLedger) -> Picture:
        """The numbers on which a decision is based."""
        usable = [name for name in self.inference if name in self.nodes and self.nodes[name].in_order]
        return Picture(
            size=len(usable),
            lent=sum(not entry.loan.closed for entry in book),
            lendable=len(self._lendable(book)),
            undecided=len(self.undecided(book)),
        )

    def undecided(self, book: LoanLedger) -> list[Entry]:
        """Entries whose reclaim can still be undone; those whose reclaim costs most come first."""

        def order(entry: Entry) -> tuple[int, int, str]:
            there = self.of(entry.node)
            return -len(there.bases), -sum(each.workers for each in there.flexible), entry.node

        return sorted((entry for entry in book if entry.undecided), key=order)

    def best_to_lend(self, wanted: int, book: LoanLedger) -> list[str]:
        """Up to `wanted` idle servers, of one GPU type as far as possible: that of which most are lent
        already."""
        lent = Counter(self._type_of(entry.node) for entry in book if not entry.loan.closed)
        idle = self._lendable(book)
        of_type = Counter(self._type_of(name) for name in idle)

        def order(name: str) -> tuple[int, int, str, str]:
            gpu_type = self._type_of(name)
            return -lent[gpu_type], -of_type[gpu_type], gpu_type, name

        return sorted(idle, key=order)[: max(0, wanted)]

    def _lendable(self, book: LoanLedger) -> list[str]:
        """Usable, empty servers that are not on loan and may be lent."""
        if self.no_more_because:
            return []
        busy = {name for job in self.view.jobs for name in job.nodes}
        not_now = {each.node for each in book.left_alone(self.now)} | busy
        return [
            name
            for name in sorted(self.inference - not_now)
            if book.get(name) is None and name in self.nodes and _is_idle(self.nodes[name])
        ]

    def _type_of(self, name: str) -> str:
        node = self.nodes.get(name)
        return node.gpu_type if node is not None else ""


def _is_idle(node: Node) -> bool:
    return not node.unusable and not node.allocated.gpus and not node.allocated.cpus
