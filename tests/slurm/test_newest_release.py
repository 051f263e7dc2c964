"""flexo on the newest release of Slurm, in short; make test-slurm-matrix has the rest, and other releases."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from matrix import session, systems
from matrix.parts import SHORT
from matrix.systems import SUITES, CannotMake, System

from flexo.clusters.slurm.releases import TESTED, Release


def _newest() -> System:
    try:
        return systems.system(SUITES[-1])
    except CannotMake as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@pytest.mark.slow
@pytest.mark.releases
@pytest.mark.timeout(1800)  # the system is made once
def test_an_elastic_job_grows_and_gives_back_on_the_newest_slurm(tmp_path: Path) -> None:
    session.run(_newest(), SHORT, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    (short,) = result["parts"].values()
    assert short["failures"] == [], (tmp_path / "short.log").read_text()[-6000:]
    assert short["passed"] > 0
    assert Release.found_in(result["slurm"]) == TESTED[-1]
