"""The sample dump of the administrator's tutorial is made by its recipe, which anybody can run again."""

from __future__ import annotations

from pathlib import Path

from dumps import sample

SAMPLE = Path(__file__).parents[3] / "examples" / "site" / "sacct.txt"


def test_the_sample_dump_is_what_its_recipe_makes() -> None:
    assert SAMPLE.read_text() == sample()
