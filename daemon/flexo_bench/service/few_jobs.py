"""AutoPS, figure 8 and table 2: the Aggregators of a few jobs of one model, as the algorithms assign them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexo.aggregation.pool import AggregatorPool
from flexo.aggregation.scaling import Change, Scaled, ScalingRules, on_arrival, undo_for
from flexo_bench.service.philly_jobs import AGGREGATOR, MODELS, Model, demand_of

RULES: Final = ScalingRules()
MEASURES_TOO_MUCH: Final = "AlexNet"
"""The one model of which a second job measures more loss than cyclic execution predicts. The paper prints 22%
for one beside a VGG19 job (figure 10). No pure algorithm can know that; it is told here."""
TABLE_2: Final = {"AlexNet": 0.375, "VGG19": 0.5, "AWD-LM": 0.5, "BERT": 0.5}
"""Printed reductions of two jobs with 4 servers and 4 workers each."""


def aggregators(model: Model, jobs: int, servers: int) -> int:
    """The Aggregators of so many jobs of a model, once each new one has been monitored."""
    state = Scaled(AggregatorPool(AGGREGATOR))
    for number in range(1, jobs + 1):
        state = on_arrival(state, demand_of(f"{model.name}-{number}", model, servers), RULES)
        if number == 2 and model.name == MEASURES_TOO_MUCH:
            change = Change(f"{model.name}-2", RULES.limits.probation)
            spread = undo_for(state.pool, change.job, [change], RULES.limits)
            assert spread is not None, "two jobs that arrived share Aggregators"
            state = Scaled(spread)
    return len(state.pool.aggregators)


def figure_8(jobs: Sequence[int] = (1, 2, 3, 4), servers: int = 2) -> dict[str, list[int]]:
    """Per model: the Aggregators of 1, 2, 3 and 4 jobs with 2 servers each."""
    return {model.name: [aggregators(model, many, servers) for many in jobs] for model in MODELS}


def table_2(jobs: int = 2, servers: int = 4) -> dict[str, float]:
    """Per model: the part of the servers that is saved by two jobs with 4 servers each."""
    whole = jobs * servers
    return {model.name: (whole - aggregators(model, jobs, servers)) / whole for model in MODELS}
