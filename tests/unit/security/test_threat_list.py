"""docs/evidence/threats.md claims nothing without a test: each threat names some, and all exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "evidence" / "threats.md"


def threats() -> list[list[str]]:
    """The lines of the tables of threats, cell by cell."""
    section = PAGE.read_text().partition("\n## Threats\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0].strip() != "who"]


def known_tests() -> set[str]:
    names: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        names |= {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return names


def test_every_threat_says_who_reaches_what_as_whom_what_stops_them_and_names_a_test() -> None:
    assert len(threats()) > 40
    for row in threats():
        assert len(row) == 5, row
        assert all(cell.strip() for cell in row), row
        assert re.findall(r"`(test_\w+)`", row[-1]), row


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named - known_tests() == set()
