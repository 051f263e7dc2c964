"""The commands that watch a pilot and roll it back print what the tutorial for administrators shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import LabFactory
from shown_outputs import ROOT, sessions, shape

_OF_THE_RUN = ("cluster ", "last look ")
"""Lines of `flexo status` with the name of the cluster, and with how long flexod's last cycle took."""


def settled(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(_OF_THE_RUN)]


@pytest.mark.thorough
def test_the_administrators_commands_print_what_the_tutorial_shows(
    spared_lab: LabFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(ROOT / "examples" / "digits", folder)
    lab = spared_lab(nodes=2, gpus_per_node=2, infer_nodes=0)

    def typed(command: str) -> list[str]:
        return settled(shape(lab.run(["bash", "-c", command], cwd=folder, timeout=120).stdout))

    grown, shrunk, rolled_back = sessions("tutorial/administrator.md")
    typed("flexo init train_ddp.py --elastic 1-4 -- --epochs 200 --pause 0.2 && sbatch train_ddp.sbatch")
    typed("flexo wait 1 --for=workers=4")
    assert [typed(command) for command, _ in grown] == [settled(output) for _, output in grown]
    typed('sbatch --output=/dev/null -N 1 --gpus-per-node=2 --wrap "sleep 120"')
    typed("until flexo why 1 | grep '^2 of 1-4 workers: no idle GPU'; do sleep 0.2; done")
    for command, output in shrunk:
        assert set(output) <= set(typed(command))
    typed("scontrol update PartitionName=flex State=DOWN && scancel --partition=flex")
    typed("flexo wait 1 --for=workers=1")
    typed("scancel --name=wrap; until ! squeue --noheader --format=%P | grep flex; do sleep 0.2; done")
    typed("until flexo jobs | grep '1/1-4  training'; do sleep 0.2; done")
    assert [typed(command) for command, _ in rolled_back] == [output for _, output in rolled_back]
