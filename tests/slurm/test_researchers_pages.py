"""The outputs on pages for researchers are those of a lab, but for numbers, nodes and times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import LabFactory
from shown_outputs import ROOT, shape, shown

_OF_THE_RUN = ("cluster ", "next ", "job ", "lost ")
"""Lines whose words differ by run: with the cluster's name, a moment, a duration, what resizes cost."""


def settled(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(_OF_THE_RUN)]


@pytest.mark.thorough
def test_the_researchers_pages_show_what_commands_print(spared_lab: LabFactory, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(ROOT / "examples" / "digits", folder)
    lab = spared_lab(nodes=3, gpus_per_node=3)

    def typed(command: str) -> list[str]:
        return shape(lab.run(["bash", "-c", command], cwd=folder, timeout=240).stdout)

    jobs, shrunk, changes, top = shown("tutorial/researcher.md")[-4:]
    mine, grown, top_again, cost, output = shown("howto/watch-a-job.md")
    (profile,) = shown("howto/resize-a-job.md")
    (bill,) = shown("howto/billing.md")
    (gained,) = shown("reference/inside-a-job.md")
    typed("flexo init train_ddp.py --elastic 1-4 -- --epochs 100 --pause 0.2 && sbatch train_ddp.sbatch")
    typed("flexo wait 1 --for=workers=4")
    assert typed("flexo jobs --me") == jobs == mine
    told = typed("flexo why 1")  # a script that begins slowly has a reason of its own for some seconds
    assert [line for line in told if not line.startswith("N wait ")] == grown
    assert settled(typed("flexo top --once")) == settled(top) == settled(top_again)
    typed('sbatch -N 2 --gpus-per-node=3 --wrap "sleep 8"')
    typed("until squeue --noheader --states=R --format=%j | grep wrap; do sleep 0.2; done")
    typed("until flexo why 1 | grep 'has left'; do sleep 0.2; done")  # it may tell of it after squeue does
    events = shrunk[shrunk.index("TIME EVENT WHAT") + 1 :]
    assert set(events) <= set(typed("flexo why 1"))
    typed("flexo wait 1 --for=workers=4")
    # flexod refuses it while a resize has only just begun
    assert typed("until flexo profile 1 --min 1 --max 2; do sleep 0.5; done") == profile
    assert settled(typed("flexo cost 1")) == settled(cost) == settled(bill)
    typed("scancel 1; flexo wait 1 || true")
    assert {*changes, *output, *gained} <= set(typed("flexo logs 1"))
