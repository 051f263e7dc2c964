"""The report of make test-slurm-matrix: what is kept of earlier runs, and the table in the documentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matrix import report
from matrix.parts import FULL, SHORT
from matrix.report import PartOutcome, SuiteOutcome
from matrix.systems import SUITES, requirements

from flexo.clusters.slurm.releases import TESTED, Release

pytestmark = pytest.mark.thorough

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "slurm-releases.md"
VERSIONS = {"slurmctld": "24.11.5-4", "munge": "0.5.16-1", "mariadb-server-core": "1:11.8.3-0+deb13u1"}
TRIXIE = SuiteOutcome(
    slurm="slurm-wlm 24.11.5",
    day="2026-11-22",
    versions=VERSIONS,
    python="3.13.5",
    pyslurm="not built for this one",
    made_in_s=95.4,
    size_mb=1234,
    parts={
        "plugin": PartOutcome(passed=90, failed=0, skipped=0, seconds=61.2),
        "qos": PartOutcome(passed=7, failed=1, skipped=2, seconds=100.0, failures=["test_x: no\nmore"]),
    },
)


def rows(table: str) -> dict[str, str]:
    """The second column by the first."""
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {cell[0]: cell[1] for cell in cells if len(cell) > 1}


def test_the_table_says_for_each_part_what_came_of_it_or_that_it_was_not_tested() -> None:
    table = report.table({"trixie": TRIXIE})
    what = {part.name: part.what for part in FULL}
    assert rows(table)["Slurm"] == "24.11.5-4"
    assert rows(table)["MariaDB"] == "11.8.3-0+deb13u1"
    assert rows(table)[what["plugin"]] == "90 passed (61 s)"
    assert rows(table)[what["qos"]] == "7 passed, **1 failed**, 2 skipped (100 s)"
    assert rows(table)[what["loans"]] == "not tested"
    assert "* trixie, qos: test_x: no" in table
    assert "more" not in table


def test_a_suite_that_cannot_be_had_is_a_column_that_says_so() -> None:
    gone = SuiteOutcome("", "2026-11-22", why_not="the archive does not answer")
    table = report.table({"trixie": TRIXIE, "forky": gone})
    assert f"* forky: {gone.why_not}" in table
    assert "| not there |" in table
    assert not gone.well


def test_a_report_is_read_back_as_it_was_written_and_a_broken_one_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    report.write(path, {"trixie": TRIXIE})
    assert report.read(path) == {"trixie": TRIXIE}
    path.write_text("{")
    assert report.read(path) == {}


def test_parts_that_were_run_earlier_stay_as_long_as_slurm_is_the_same() -> None:
    now = replace(TRIXIE, parts={"loans": PartOutcome(3, 0, 0, 5.0)})
    assert set(report.merged(TRIXIE, now).parts) == {"plugin", "qos", "loans"}
    other = replace(now, versions={**VERSIONS, "slurmctld": "24.11.6-1"})
    assert set(report.merged(TRIXIE, other).parts) == {"loans"}
    assert report.merged(None, now) == now


def test_a_run_in_which_nothing_ran_is_no_success() -> None:
    assert not TRIXIE.well
    assert not replace(TRIXIE, parts={"plugin": PartOutcome(0, 0, 9, 1.0)}).well
    assert replace(TRIXIE, parts={"plugin": TRIXIE.parts["plugin"]}).well


def test_the_table_replaces_what_stands_between_its_marks_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nstale line\n{report.END}\nafter\n")
    report.put_into(page, {"trixie": TRIXIE})
    text = page.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n\n| ")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "stale line" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the lines"):
        report.put_into(page, {"trixie": TRIXIE})


def test_the_page_has_the_marks_and_names_every_part() -> None:
    text = DOCS.read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1
    for part in FULL:
        assert part.what in text


def test_every_tested_release_has_its_suite_and_every_part_something_to_run() -> None:
    assert tuple(Release.found_in(suite.slurm) for suite in SUITES) == TESTED
    for part in (*FULL, *SHORT):
        assert bool(part.tests) != bool(part.command)


def test_a_system_gets_what_pyproject_pins() -> None:
    pins = requirements()
    assert [pin for pin in pins if pin.startswith("pytest==")]
    assert [pin for pin in pins if pin.startswith("grpcio==")]
    assert not [pin for pin in pins if pin.startswith("torch")]
