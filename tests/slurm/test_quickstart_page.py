"""The quickstart's commands on a real cluster print what its page shows, but for numbers, nodes and times."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LabFactory
from shown_outputs import ROOT, shape, shown

from flexo_lab import Lab


@pytest.fixture
def typed(spared_lab: LabFactory, tmp_path: Path) -> Callable[[str], list[str]]:
    """Types a command in the folder that the page has one copy. Returns the shape of its output."""
    folder = tmp_path / "digits"
    shutil.copytree(ROOT / "examples" / "digits", folder)
    lab: Lab = spared_lab(nodes=3, gpus_per_node=3)

    def run(command: str) -> list[str]:
        return shape(lab.run(["bash", "-c", command], cwd=folder, timeout=240).stdout)

    return run


@pytest.mark.thorough
def test_the_pages_commands_print_what_it_shows(typed: Callable[[str], list[str]]) -> None:
    check, queue, jobs, grown, taken, shrunk, again, output, cost = shown("tutorial/quickstart.md")[-9:]
    assert typed("flexo check train_ddp.py") == check
    typed("flexo init train_ddp.py --elastic 1-4 -- --epochs 200 --pause 0.2 && sbatch train_ddp.sbatch")
    typed("flexo wait 1 --for=workers=4")
    assert set(queue) <= set(typed("squeue"))
    assert typed("flexo jobs") == jobs
    assert typed("flexo why 1") == grown
    typed('sbatch -N 2 --gpus-per-node=3 --wrap "sleep 20"')
    typed("until squeue --noheader --states=R --format=%j | grep wrap; do sleep 0.2; done")
    assert set(taken) <= set(typed("squeue"))
    typed("until flexo why 1 | grep 'has left'; do sleep 0.2; done")  # it may tell of it after squeue does
    events = shrunk[shrunk.index("TIME EVENT WHAT") + 1 :]
    assert set(events) <= set(typed("flexo why 1"))
    typed("flexo wait 1 --for=workers=4")
    assert typed("flexo jobs") == again
    assert set(output) <= set(typed("flexo logs 1"))
    assert [line.split()[0] for line in typed("flexo cost 1")] == [line.split()[0] for line in cost]
