"""The README's table of what works: its versions are those of the tests, and each row names its tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

import horovod_wheels
import pytest
from written_pages import ROOT, text_of

from flexo.clusters.slurm.releases import TESTED
from flexo_lab.yarn.jars import hadoop_version

HEAD = "| | tested | designed, not run yet | unsupported | kept true by |\n|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    what: str
    tested: str
    designed: str
    unsupported: str
    tests: str


def rows() -> dict[str, Row]:
    """The rows, by their first cell."""
    table = text_of("README.md").split(HEAD)[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: Row(*row) for row in cells}


def test_what_is_tested_is_said_of_all_that_a_reader_asks_for() -> None:
    assert list(rows()) == ["Scripts", "Frameworks", "GPUs", "Collectives", "Clusters", "Slurm", "Systems"]


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.what)
def test_each_row_leads_to_tests_that_are_there(row: Row) -> None:
    files = re.findall(r"\]\((tests/[\w/]+\.py)\)", row.tests)
    targets = re.findall(r"`make ([a-z-]+)`", row.tests)
    assert files or targets
    assert [file for file in files if not (ROOT / file).is_file()] == []
    there = re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) <= set(there)


def test_the_releases_are_those_that_tests_run_on() -> None:
    pinned = re.search(r'^torch = \["torch==(\d+\.\d+)\.', text_of("pyproject.toml"), re.MULTILINE)
    assert pinned is not None
    horovod = horovod_wheels.VERSION.rpartition(".")[0]
    scripts = rows()["Scripts"].tested
    assert f"PyTorch {pinned[1]}:" in scripts
    assert f"Horovod {horovod}:" in scripts
    assert f"Hadoop {hadoop_version()})" in rows()["Clusters"].tested
    assert f"[{', '.join(map(str, TESTED))}]" in rows()["Slurm"].tested


def test_what_is_tested_on_gpus_says_on_how_many_and_leads_to_what_was_seen() -> None:
    """One GPU for ten minutes: as long as that is all, no row may claim more."""
    on_gpus = [row for row in rows().values() if re.search("NCCL|H100|real GPUs", row.tested)]
    assert [row.what for row in on_gpus] == ["GPUs", "Collectives"]
    for row in on_gpus:
        assert re.search(r"\[one (GPU|H100)\]\(docs/evidence/gpu\.md\)", row.tested)
        assert "several GPUs" in row.designed
