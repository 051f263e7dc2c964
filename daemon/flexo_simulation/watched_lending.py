"""Lending in a simulation: the code that flexod runs, with a record of its results."""

from __future__ import annotations

from flexo.clusters.simulated.nodes import BORROWED, INFERENCE
from flexo.loaning.forecast import Predictor
from flexo.loaning.lending import Lending
from flexo.loaning.lending_cycle import LendingPlan, LendingSettings, View
from flexo.model.loans import Loan, PastLoan
from flexo_simulation.inference import Inference, TraceDemand


class WatchedLending(Lending):
    """Lending that records the results of its cycles. Mutable: belongs to one simulation."""

    def __init__(self, inference: Inference) -> None:
        super().__init__(
            LendingSettings(
                INFERENCE, BORROWED, inference.rules, inference.timing, inference.edit_interval_s
            ),
            TraceDemand(inference.demand),
            forecast=_forecast(inference) if inference.forecast else None,
            chooser=inference.chooser,
        )
        self.loans: tuple[Loan, ...] = ()
        """The loans that stand."""
        self.ended: list[PastLoan] = []
        """The loans that have ended, in the order of their ends."""

    def cycle(self, view: View) -> LendingPlan:
        """Run one cycle as flexod does, and record its loans."""
        plan = super().cycle(view)
        self.loans = plan.loans
        self.ended += plan.ended
        return plan


def _forecast(inference: Inference) -> Predictor:
    """A forecast that has learnt the trace's demand before the simulation begins."""
    predictor = Predictor(interval_s=inference.rules.interval_s)
    for at, servers in inference.demand.between(-float("inf"), 0.0):
        predictor.note(at, servers)
    return predictor
