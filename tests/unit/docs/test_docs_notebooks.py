"""Notebooks in the repository hold what people wrote, and nothing of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
NOTEBOOKS = sorted(EXAMPLES.rglob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_no_outputs_and_each_of_its_cells_has_a_name(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    ran = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert ran == []
    assert len({cell["id"] for cell in cells}) == len(cells)
