"""The report of both parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chaos import report
from chaos.report import Part
from says import says

pytestmark = pytest.mark.thorough


def test_the_report_adds_both_parts_up_and_keeps_what_was_wrong(tmp_path: Path) -> None:
    jobs = Part("jobs", 2, report.count([("kill", "worker"), ("kill", "worker")]), (), (), {"core": "torch"})
    deeds = report.count([("hold", "flexod"), ("kill", "slurmd"), ("hold", "flexod")])
    system = Part("system", 3, deeds, ("seed 7: no job is lost: it is", "seed 7: other"), (7,), {})
    assert deeds == {"hold flexod": 2, "kill slurmd": 1}
    path = tmp_path / "there" / "report.json"
    report.write([jobs, system], 12.34, path)
    written = json.loads(path.read_text())
    parts = written.pop("parts")
    assert written == {"runs": 5, "kills": 5, "violations": 2, "seeds_failed": ["system 7"], "seconds": 12.3}
    assert [part["name"] for part in parts] == ["jobs", "system"]
    assert parts[1]["violations"] == list(system.violations)
    assert says(report.sentence(system), "system", "2 of 3", "3 failures", "2 kinds", "2 violations")
