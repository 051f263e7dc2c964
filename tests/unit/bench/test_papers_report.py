"""How published figures and ours are put side by side."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from flexo_bench.papers.figures import Comparison, Figure, Row, Table, ratio
from flexo_bench.papers.report import as_json, cell, show

pytestmark = pytest.mark.thorough

ONE = Comparison(
    "one",
    "Somebody (2020), table 1",
    ("Their cluster is larger.",),
    (Table("table 1", ("s", "%"), (Row("fast", (Figure(1.5, (1.0, 2.0)), Figure(math.nan, (3.0,)))),)),),
)


def test_a_cell_has_the_papers_figure_first_and_the_range_of_ours():
    assert cell(Figure(1.59, (2.0, 1.0, 3.0)), 2) == "1.59 | 2.00 (1.00..3.00)"
    assert cell(Figure(7.0, (5.5,)), 1) == "7.0 | 5.5"


def test_what_is_not_printed_or_not_ours_is_a_dash():
    assert cell(Figure(math.nan, (5.0,)), 0) == "- | 5"
    assert cell(Figure(5.0, ()), 0) == "5 | -"


def test_a_ratio_over_seeds_is_that_of_the_sums():
    found = ratio([10.0, 20.0], [1.0, 4.0], 3.0)
    assert found.ours == (10.0, 5.0)
    assert found.middle == 6.0


def test_a_ratio_to_nothing_is_infinite():
    assert ratio([10.0], [0.0], 3.0).middle == math.inf
    assert cell(ratio([10.0, 8.0], [0.0, 2.0], 3.0), 1) == "3.0 | 9.0 (4.0..inf)"


def test_tables_tell_every_difference(capsys: pytest.CaptureFixture[str]):
    show(ONE, Console(width=120))
    shown = capsys.readouterr().out
    assert "Their cluster is larger." in shown
    assert "1.50 | 1.50 (1.00..2.00)" in shown


def test_json_has_every_seed_and_null_for_what_is_not_printed():
    figures = json.loads(json.dumps(as_json(ONE), allow_nan=False))["tables"]["table 1"]["fast"]
    assert figures["s"] == {"paper": 1.5, "ours": 1.5, "each": [1.0, 2.0]}
    assert figures["%"]["paper"] is None
