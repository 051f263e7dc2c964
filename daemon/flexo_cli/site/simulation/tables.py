"""Prints results of simulations: a column for each policy, a line for each figure."""

from __future__ import annotations

from collections.abc import Sequence

from flexo_cli.output import print_line, print_table
from flexo_simulation.result_words import ORACLE, rows, title
from flexo_simulation.results import SimulatedRun


def print_results(outcomes: Sequence[SimulatedRun]) -> None:
    """Print the table, and a note if a policy is an oracle."""
    titles = [title(outcome) for outcome in outcomes]
    print_table(("FIGURE", *titles), rows(outcomes), right=titles)
    if any(outcome.result.oracle for outcome in outcomes):
        print_line(ORACLE)
