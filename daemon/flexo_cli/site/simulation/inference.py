"""Makes the simulated inference cluster from the options of the command line.

Raises typer.BadParameter for invalid options, BadTrace for a demand that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import typer

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.loaning.diurnal import Diurnal
from flexo.loaning.orchestrator import Rules
from flexo.loaning.reclaim import Chooser, exact, heuristic, random_choice, smallest_jobs_first
from flexo_cli.site.simulation import words
from flexo_cli.site.simulation.asked import AskedInference
from flexo_simulation.demand_trace import DAY_S, DemandTrace, made_up, read_demand
from flexo_simulation.inference import Inference
from flexo_simulation.workload import Workload

GENERATED: Final = "generated"
"""Value of --inference-demand for a made-up demand instead of a file."""
CHOOSERS: Final[Mapping[str, Callable[[int], Chooser]]] = {
    "heuristic": lambda seed: heuristic,
    "exact": lambda seed: exact,
    "random": random_choice,
    "smallest": lambda seed: smallest_jobs_first,
}
_NAME: Final = "infer-"
_DAYS_AFTER: Final = 60.0
"""Days after the last submission for which demand is made up. Then demand stays constant."""


def inference(asked: AskedInference, seed: int, workload: Workload) -> Inference | None:
    """The inference cluster; None if the options ask for none."""
    if asked.nodes is None:
        if asked != AskedInference():
            raise typer.BadParameter(
                "say it, too: without it there is no inference cluster", param_hint="--inference-nodes"
            )
        return None
    if asked.reclaim not in CHOOSERS:
        raise typer.BadParameter(
            f"'{asked.reclaim}' is none of {', '.join(CHOOSERS)}", param_hint="--reclaim"
        )
    return Inference(
        servers=NodeGroup(asked.nodes, asked.gpus, asked.gpu_type, _NAME),
        demand=_demand(asked, seed, workload),
        lends=asked.lends,
        rules=Rules(
            headroom_share=words.share(asked.headroom, "--headroom"),
            interval_s=asked.interval_s,
            rest_s=asked.interval_s,
            reclaim_s=asked.reclaim_s,
        ),
        chooser=CHOOSERS[asked.reclaim](seed),
    )


def _demand(asked: AskedInference, seed: int, workload: Workload) -> DemandTrace:
    if asked.demand != GENERATED:
        return read_demand(Path(asked.demand))
    assert asked.nodes is not None
    last = workload.jobs[-1].submitted_at if workload.jobs else 0.0
    return made_up(Diurnal(servers=asked.nodes), seed, last / DAY_S + _DAYS_AFTER)


def described(inference: Inference) -> str:
    """The inference cluster in words: ``"beside it 4 inference servers of 8 t4, ..."``."""
    servers, rules = inference.servers, inference.rules
    of = f"{servers.count} inference servers of {servers.gpus} {servers.gpu_type or 'GPUs'}"
    text = f"beside it {of}; what they are needed for: {inference.demand.name}"
    if not inference.lends:
        return f"{text}; none is lent"
    return (
        f"{text}; idle ones are lent every {rules.interval_s:g} s, {rules.headroom_share:.0%} of the need and"
        f" {rules.headroom_servers:g} are kept back, called back ones come within {rules.reclaim_s:g} s"
    )
