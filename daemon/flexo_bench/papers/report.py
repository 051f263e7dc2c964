"""Reports comparisons as text for people and as JSON."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid

from flexo_bench.papers.figures import Comparison, Figure, Table


def show(comparison: Comparison, console: Console) -> None:
    """Print every table, with the paper's figure left of ours, and all differences of the set-ups."""
    console.print(f"\n[bold]{comparison.name}[/bold]: {comparison.paper}", highlight=False)
    for difference in comparison.differences:
        console.print(Padding(f"- {difference}", (0, 0, 0, 2)), highlight=False)
    for table in comparison.tables:
        console.print(_grid(table))


def _grid(table: Table) -> Grid:
    grid = Grid(title=table.title, title_justify="left", box=box.SIMPLE, title_style="italic")
    grid.add_column("paper | ours: mean (lowest..highest)")
    for column in table.columns:
        grid.add_column(column, justify="right")
    for row in table.rows:
        grid.add_row(row.label, *(cell(figure, table.digits) for figure in row.figures))
    return grid


def cell(figure: Figure, digits: int) -> str:
    """A cell of a table: `1.59 | 2.06 (1.95..2.11)`; a dash for a figure that the paper does not print."""
    paper, ours = _number(figure.paper, digits), _number(figure.middle, digits)
    if len(figure.ours) < 2:
        return f"{paper} | {ours}"
    low, high = min(figure.ours), max(figure.ours)
    return f"{paper} | {ours} ({_number(low, digits)}..{_number(high, digits)})"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Figures by table, case and column, with the time of writing; null for a value that is not finite."""
    return {
        "paper": comparison.paper,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "differences": list(comparison.differences),
        "tables": {table.title: _table(table) for table in comparison.tables},
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        row.label: {
            column: {
                "paper": _finite(figure.paper),
                "ours": _finite(figure.middle),
                "each": [_finite(value) for value in figure.ours],
            }
            for column, figure in zip(table.columns, row.figures, strict=True)
        }
        for row in table.rows
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
