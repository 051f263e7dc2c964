"""The settings of a simulation's inference cluster: its servers, its demand, and how it lends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flexo.clusters.simulated.nodes import INFERENCE, NodeGroup, make_nodes
from flexo.loaning.demand import DemandSource
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim import Chooser, heuristic
from flexo.loaning.reclaim_steps import Timing
from flexo.model.loans import Demand
from flexo.model.nodes import Node
from flexo.model.queue import QueuedJob
from flexo_simulation.demand_trace import DemandTrace


@dataclass(frozen=True, slots=True)
class Inference:
    """An inference cluster beside the training cluster of a scenario."""

    servers: NodeGroup
    demand: DemandTrace
    lends: bool = True
    """Whether it lends servers. If not, it keeps all, and only counts in the use of both clusters."""
    rules: Rules = field(default_factory=Rules)
    timing: Timing = field(default_factory=Timing)
    edit_interval_s: float = 60.0
    """Seconds between two changes of what is lent."""
    chooser: Chooser = heuristic
    """Chooses the servers to reclaim, if some have to be."""
    only_asked: bool = False
    """Whether it lends no more servers than jobs hold and ask for. flexod lends all that inference can spare,
    so that they are there when a job comes."""
    forecast: bool = True
    """Whether a forecast is used; else only the present demand counts."""

    @property
    def nodes_to_lend(self) -> tuple[Node, ...]:
        """The servers, if any of them may ever be lent."""
        return make_nodes((self.servers,), INFERENCE) if self.lends else ()


class TraceDemand(DemandSource):
    """The demand of a trace. It never demands servers back by a deadline."""

    def __init__(self, trace: DemandTrace) -> None:
        self._trace = trace

    def read(self, now: float, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Demand:
        """The demand at this instant."""
        return Demand(now, self._trace.at(now), self._trace.name)
