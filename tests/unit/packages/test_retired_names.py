"""Retired names are found where they are identifiers, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import retired_names


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("class Keeper:\n    pass\n", [1]),
        ("x = 1\nmandate = x.courier\n", [2, 2]),
        ('"""A keeper with a mandate."""  # of the courier\n', []),
        (f'x = 1\n"""Raises\n\n  `{"No"}Keeper`."""  # see {"take"}_office\n', [4, 4]),
    ],
)
def test_an_identifier_is_found_and_a_word_is_not(text: str, lines: list[int], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert [line for line, _ in retired_names.retired_in(path)] == lines


def test_no_retired_name_is_the_new_name_of_another() -> None:
    new = {name for names in retired_names.RETIRED.values() for name in names.split(", ")}
    assert not new & retired_names.RETIRED.keys()
