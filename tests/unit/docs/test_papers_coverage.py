"""The page that says where the mechanisms of the papers are: files and commands exist, words are defined."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import command_help
import pytest
from written_pages import ROOT, text_of

pytest.importorskip("torch")

from flexo_bench.papers.__main__ import PARTS as PAPERS
from flexo_bench.runtime.__main__ import PARTS as RUNTIME
from flexo_bench.service.parts import PARTS as SERVICE

PAGE = "docs/evidence/papers-coverage.md"
STATES = {"built", "simulated", "benchmark", "partly", "missing", "left out"}
NEED_NOTHING = {"missing", "left out"}
PARTS = {"bench-papers": PAPERS, "bench-runtime": RUNTIME, "bench-service": SERVICE}
SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    what: str
    state: str
    why: str
    files: tuple[str, ...]
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return self.what


def rows() -> Iterator[Row]:
    """All rows of all papers."""
    for line in text_of(PAGE).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[1] != "state" and set(cells[0]) != {"-"}:
            state, _, why = cells[1].partition(":")
            yield Row(cells[0], state, why, tuple(SPAN.findall(cells[2])), tuple(SPAN.findall(cells[3])))


ROWS = list(rows())


def test_there_are_rows_of_five_papers() -> None:
    papers = re.findall(r"^## (.+)$", text_of(PAGE), re.MULTILINE)
    assert papers == ["Amoeba", "IBM", "Lyra", "AntMan", "Parameter Service"]
    assert len(ROWS) > 60


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_row_has_a_state_that_the_page_defines_and_a_reason_where_one_is_due(row: Row) -> None:
    assert row.state in STATES
    assert f"**{row.state}**" in text_of(PAGE)
    assert bool(row.why) or row.state not in {"partly", "left out"}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_mechanism_that_is_there_names_a_file_and_a_command(row: Row) -> None:
    assert row.state in NEED_NOTHING or (row.files and row.commands)
    for name in row.files:
        assert (ROOT / name).exists(), f"{name} is not there"


@pytest.mark.parametrize("command", sorted({each for row in ROWS for each in row.commands}))
def test_each_command_exists_with_the_parts_that_it_names(command: str) -> None:
    program, name, *rest = shlex.split(command)
    if program == "flexo":
        known = {each.name.split()[-1] for each in command_help.flexo().commands}
        assert name in known
        return
    assert program == "make"
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for argument in rest:
        flag, *values = shlex.split(argument.removeprefix("ARGS="))
        if flag in {"--parts", "--only"}:
            assert set(values) <= set(PARTS[name])
