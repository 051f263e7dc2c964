"""A real Slurm cluster on one machine, for tests, demos and trying things (docs/lab.md).

lab = bring_up(LabSpec(name="mine"))
lab.run(["sbatch", "-p", "train", "job.sh"], user="games")
lab.down()
"""

from flexo.lab.bringup import bring_up
from flexo.lab.errors import (
    BadSpec,
    LabBusy,
    LabCommandFailed,
    LabError,
    LabExists,
    LabFailed,
    LabUnavailable,
    NoSuchLab,
    UnsafeFolder,
)
from flexo.lab.lab import Lab, all_labs
from flexo.lab.requirements import why_unavailable
from flexo.lab.spec import LabSpec, Profile
from flexo.lab.teardown import take_down

__all__ = [
    "BadSpec",
    "Lab",
    "LabBusy",
    "LabCommandFailed",
    "LabError",
    "LabExists",
    "LabFailed",
    "LabSpec",
    "LabUnavailable",
    "NoSuchLab",
    "Profile",
    "UnsafeFolder",
    "all_labs",
    "bring_up",
    "take_down",
    "why_unavailable",
]
