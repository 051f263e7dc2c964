"""A real Slurm cluster on one machine, for tests, demos and trying things (docs/howto/lab.md).

lab = bring_up(LabSpec(name="mine"))
lab.run(["sbatch", "-p", "train", "job.sh"], user="games")
lab.down()
"""

from flexo_lab.bringup import bring_up
from flexo_lab.errors import (
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
from flexo_lab.lab import Lab, all_labs
from flexo_lab.requirements import why_unavailable
from flexo_lab.spec import LabSpec, Profile
from flexo_lab.teardown import take_down

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
