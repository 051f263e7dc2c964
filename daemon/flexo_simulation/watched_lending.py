"""Lending in a simulation: the very code that flexod runs, and a memory of what came of it."""

from __future__ import annotations

from flexo.clusters.simulated.nodes import BORROWED, INFERENCE
from flexo.loaning.forecast import Predictor
from flexo.loaning.lending import Lending
from flexo.loaning.turn import LendingPlan, LendingSettings, View
from flexo.model.loans import Loan, PastLoan
from flexo_simulation.inference import Inference, TraceDemand


class WatchedLending(Lending):
    """Remembers what its turns have said. Mutable: belongs to one simulation."""

    def __init__(self, inference: Inference) -> None:
        super().__init__(
            LendingSettings(
                INFERENCE, BORROWED, inference.rules, inference.timing, inference.edit_interval_s
            ),
            TraceDemand(inference.demand),
            outlook=_outlook(inference) if inference.forecast else None,
            chooser=inference.chooser,
        )
        self.loans: tuple[Loan, ...] = ()
        """Those that stand."""
        self.ended: list[PastLoan] = []
        """Those that do not stand any more, in the order in which they ended."""

    def turn(self, view: View) -> LendingPlan:
        """As flexod's."""
        plan = super().turn(view)
        self.loans = plan.loans
        self.ended += plan.ended
        return plan


def _outlook(inference: Inference) -> Predictor:
    """Knows what the trace says of the time before the simulation begins."""
    predictor = Predictor(interval_s=inference.rules.interval_s)
    for at, servers in inference.demand.between(-float("inf"), 0.0):
        predictor.note(at, servers)
    return predictor
