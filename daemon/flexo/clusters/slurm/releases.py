"""Slurm's releases: those that flexo is tested with, and all differences between them that matter to it.

Code that depends on one of these differences goes by what Slurm prints or offers, where flexo can ask for
that, and by `Release` where it cannot. tests/unit/clusters/captured has what each release really printed,
tests/slurm/matrix runs flexo on each, docs/reference/slurm-releases.md says with what result.

22.05: `squeue -O` has no ExcNodes, and no --helpFormat: excluded nodes are read with `squeue -o %x`, once for
       every job when it is first seen waiting; changed later with `scontrol update`, they are not seen to
       change (reader_commands). cgroup.conf knows no CgroupPlugin=disabled (flexo_lab). The reason for which
       Lua refuses `scontrol update` stands in slurmctld's log alone. preempt_youngest_first is one of
       SchedulerParameters; later releases have youngest_first in PreemptParameters (flexo.doctor).
23.02: Device cgroups open the device files of a GRES without a plugin, and gres.conf has Flags=explicit. GPUs
       are shared from this release on (flexo.doctor.sharing).
24.11: `squeue -O` has ExcNodes (`squeue --helpFormat` lists it). Generic resources are written `gres/gpu:2`
       and not `gres:gpu:2`, without a number where the user gave none (text). Nodes without any have no
       GresUsed (parse_nodes). Without cgroups, cgroup.conf has to say CgroupPlugin=disabled (flexo_lab).
26.05: OverSubscribe is NO for every ordinary job; a new field, Exclusive, says what it said before
       (parse_jobs). --gres=gpu beside SLURM_GPUS_PER_NODE is refused, so what is submitted from within a job
       is submitted without Slurm's variables (horovod_elastic.platforms.slurm). pyslurm: see from_pyslurm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A release of Slurm; its minor versions change nothing that matters here."""

    year: int
    month: int

    @classmethod
    def found_in(cls, text: str) -> Release | None:
        """The release named in a text such as `slurm-wlm 24.11.5` (`slurmctld -V`) or `24.11.5`; None if it
        names none."""
        match = re.search(r"(?<![\d.])(\d\d)\.(\d\d)(?!\d)", text)
        return cls(int(match[1]), int(match[2])) if match else None

    def __str__(self) -> str:
        return f"{self.year:02}.{self.month:02}"

    @property
    def cgroups_can_be_disabled(self) -> bool:
        """Whether cgroup.conf knows CgroupPlugin=disabled, which a host without cgroups then needs."""
        return self >= Release(23, 11)


_PYSLURM_WITHOUT_ONE_OF_ITS_OWN: Final = {(Release(25, 11), 45): Release(26, 5)}
"""The release of Slurm that a pyslurm of an earlier release reads, by the libslurm that it runs on.

There is no pyslurm for 26.05. That for 25.11 can be compiled against the headers of 26.05
(docs/reference/slurm-releases.md). One that was compiled against those of 25.11 does not load with the
libslurm of 26.05, which lacks slurm_free_ctl_conf().
"""


def read_by_pyslurm(version: str, libslurm: int) -> Release | None:
    """The release of Slurm that a pyslurm reads: that of its version, with the exceptions above. None for a
    version that names none.

    `version`: pyslurm's own, as in 25.11.2; a version for Slurm 25.05 may begin with 25.5. `libslurm`: the
    number of the loaded library's interface, as in libslurm.so.45; 0 if it is not known.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return None
    own = Release(int(match[1]), int(match[2]))
    return _PYSLURM_WITHOUT_ONE_OF_ITS_OWN.get((own, libslurm), own)


TESTED: Final = (Release(22, 5), Release(24, 11), Release(26, 5))
"""The tested releases, the oldest first, the newest last."""
