"""The story's cluster on Slurm. Jobs are parsed from `scontrol -d show job`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from flexo.clusters.slurm.hostlist import expand
from flexo.clusters.slurm.marks import satellite_tag
from flexo_demos.elastic.cluster import Servers
from flexo_demos.elastic.plot import EXAMPLE, Plot
from flexo_demos.elastic.queue import HOLDING, QueuedJob
from flexo_lab import Lab


class SlurmDemo:
    """A DemoCluster on a Slurm lab."""

    software = "Slurm"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.nodes = lab.spec.train_names
        self.servers: Servers | None = None

    def version(self) -> str:
        """The release that slurmctld reports; "" if it reports none."""
        for line in self._lab.run(["scontrol", "show", "config"]).stdout.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "SLURM_VERSION":
                return value.strip()
        return ""

    def elastic_command(self, plot: Plot) -> str:
        """See DemoCluster."""
        return f"{' '.join(self._elastic(plot))} train.sbatch"

    def submit_elastic(self, plot: Plot, out: Path) -> int:
        """See DemoCluster."""
        script = [str(EXAMPLE / "train.sbatch"), *plot.script_arguments(out / "elastic")]
        where = ["--parsable", "--chdir", str(EXAMPLE), "--output", str(out / "elastic.out")]
        return self._sbatch([*self._elastic(plot), *where, *script])

    def rigid_command(self, plot: Plot) -> str:
        """See DemoCluster."""
        return f"{' '.join(self._rigid(plot))} rigid.sbatch"

    def submit_rigid(self, plot: Plot, out: Path, shell: str) -> int:
        """See DemoCluster."""
        where = ["--parsable", "--job-name", "rigid", "--output", str(out / "rigid.out")]
        return self._sbatch([*self._rigid(plot), *where, "--wrap", shell])

    def jobs(self) -> tuple[QueuedJob, ...]:
        """See DemoCluster."""
        return parse_jobs(self._lab.run(["scontrol", "-d", "show", "job"]).stdout)

    @staticmethod
    def _elastic(plot: Plot) -> list[str]:
        return ["sbatch", "-n", "1", "--gpus-per-task=1", f"--elastic=1-{plot.most_workers}"]

    @staticmethod
    def _rigid(plot: Plot) -> list[str]:
        return ["sbatch", "-N", str(plot.rigid_nodes), f"--gpus-per-node={plot.gpus_per_node}"]

    def _sbatch(self, command: list[str]) -> int:
        return int(self._lab.run(command).stdout.split(";")[0])


def parse_jobs(text: str) -> tuple[QueuedJob, ...]:
    """Jobs from `scontrol -d show job`. Raises ValueError for a job that lacks a required field."""
    records = (record for record in re.split(r"\n\s*\n", text) if "JobId=" in record)
    return tuple(_parse_job(record) for record in records)


def _parse_job(record: str) -> QueuedJob:
    state = _value(record, "JobState")
    return QueuedJob(
        job_id=int(_value(record, "JobId")),
        state=state,
        reason=_value(record, "Reason"),
        gpus=tuple(_allocation(record)) if state in HOLDING else (),
        satellite=_is_satellite(record),
    )


def _is_satellite(record: str) -> bool:
    comment = re.search(r"^\s*Comment=(.*)$", record, re.MULTILINE)
    return comment is not None and satellite_tag(comment[1].strip()) is not None


def _value(record: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", record)
    if match is None:
        raise ValueError(f"scontrol shows a job without {key}: {record.strip().splitlines()[0]}")
    return match[1]


def _allocation(record: str) -> Iterator[tuple[str, int]]:
    """Parse lines such as `Nodes=t[2-3] CPU_IDs=0 Mem=4000 GRES=gpu:3(IDX:0-2)`; GRES is of each node."""
    for names, gres in re.findall(r"^\s*Nodes=(\S+) .*GRES=(\S*)", record, re.MULTILINE):
        gpus = _gpus(gres)
        for name in expand(names) if gpus else ():
            yield name, gpus


def _gpus(gres: str) -> int:
    """GPUs in GRES: `gpu:3(IDX:0-2)` -> 3, `gpu:v100:4(IDX:0-3)` -> 4, `nic:1(IDX:0),gpu:a:1(IDX:0)` -> 1."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu:(?:[^:(),]+:)?(\d+)(?=[,(]|$)", gres))
