"""IBM's figures 7 and 9: jobs completed over time in bursts, with drops and with a queue (IV-G, IV-I)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo_bench.papers.figures import Comparison, Row, Run, Table, ratio
from flexo_bench.papers.ibm import CASES, PAPER, SETUPS, Setup, trials_of
from flexo_bench.papers.ibm_figures import completions, curve
from flexo_simulation.results import SimulatedRun

MARKS: Final = 4
"""The number of minutes at which a curve is read, evenly spaced until arrivals end."""
_ARRIVALS_END: Final = MARKS - 1
"""The place of the last of them among a curve's figures."""
DIFFERENCES: Final = (
    "The simulations are those of tables III (figure 7) and IV (figure 9), with decisions every 10 min, and"
    " assume what the part `ibm` assumes.",
    "The paper's curves are pictures. Its text prints how many times as many jobs the elastic batch completes"
    " as Random-BS, and does not say whether with drops or with a queue. The ratio stands beside both of"
    " ours, counted when arrivals end.",
    "Ours are several seeds: mean (lowest to highest).",
)


@dataclass(frozen=True)
class Burst:
    """A figure of the paper: its set-up, and the printed ratio of jobs completed, elastic to fixed."""

    label: str
    setup: Setup
    jobs: float


FIGURES: Final = (Burst("figure 7", SETUPS["III"], 1.5), Burst("figure 9", SETUPS["IV"], 1.6))


def compare(run: Run, seeds: Sequence[int]) -> Comparison:
    """Simulate both figures."""
    ratios: list[Row] = []
    curves: list[Table] = []
    for burst in FIGURES:
        curves.append(_curves(burst, _simulate(run, burst.setup, seeds)))
        ratios += _ratios(burst, curves[-1])
    more = Table("jobs completed, elastic to Random-BS, when arrivals end", ("ratio",), tuple(ratios))
    return Comparison("ibm-bursts", PAPER, DIFFERENCES, (more, *curves))


def _simulate(run: Run, setup: Setup, seeds: Sequence[int]) -> Mapping[str, Sequence[SimulatedRun]]:
    """The simulations by case, each by seed."""
    runs = run([trial for seed in seeds for trial in trials_of(setup, seed)])
    return {case: runs[at :: len(CASES)] for at, case in enumerate(CASES)}


def _ratios(burst: Burst, curves: Table) -> list[Row]:
    """The ratio with drops (panel a), and with a queue (panel b)."""
    completed = {row.label: row.figures[_ARRIVALS_END].ours for row in curves.rows}
    elastic, fixed = CASES[::2], CASES[1::2]
    return [
        Row(f"{burst.label}{panel}", (ratio(completed[ours], completed[theirs], burst.jobs),))
        for panel, ours, theirs in zip(("a, drop", "b, queue"), elastic, fixed, strict=True)
    ]


def _curves(burst: Burst, runs: Mapping[str, Sequence[SimulatedRun]]) -> Table:
    """The jobs that have arrived, and those completed, of each case."""
    minutes = [burst.setup.minutes * (at + 1) / MARKS for at in range(MARKS)]
    arrived = [[each.job.submitted_at for each in one.records] for one in runs[CASES[0]]]
    rows = [curve("arrived", arrived, minutes)]
    rows += [curve(case, [completions(one) for one in each], minutes) for case, each in runs.items()]
    columns = (*(f"{minute:.0f} min" for minute in minutes), "in the end")
    return Table(f"{burst.label}: jobs completed by then", columns, tuple(rows), 0)
