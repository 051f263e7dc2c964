"""The story's cluster on YARN. Applications and containers are those that the ResourceManager lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flexo.clusters.yarn.read_applications import base_of, end_of, gang_of
from flexo_demos.elastic.cluster import Servers
from flexo_demos.elastic.plot import EXAMPLE, Plot
from flexo_demos.elastic.queue import QueuedJob
from flexo_demos.elastic.yarn_inference import Inference
from flexo_lab.errors import LabCommandFailed
from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records, rest
from flexo_yarn.configuration import read_client
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.resource_manager import ResourceManager

_ENVIRONMENT: Final = Path(sys.executable).parents[1]
_ASKS_FOR_S = 10.0


class YarnDemo:
    """A DemoCluster on a YARN lab. All nodes of the lab have this program's own environment."""

    software = "YARN"

    def __init__(self, lab: YarnLab, servers: Inference) -> None:
        self._lab = lab
        self.nodes = lab.spec.train_names
        self.servers: Servers | None = servers
        names = enumerate(lab.spec.node_names, 1)
        self._name_of = {lab.yarn_layout.node(number): name for number, name in names}
        self._client = ResourceManager(lab.clients, user="root")

    def version(self) -> str:
        """The release that the ResourceManager reports."""
        try:
            web = read_client(self._lab.yarn_layout.client_conf).web
            info = rest.get_from_active(web, "info", {}, _ASKS_FOR_S)
        except IpcError as error:
            raise LabCommandFailed(str(error)) from error
        return str(info["clusterInfo"]["hadoopVersion"])

    def elastic_command(self, plot: Plot) -> str:
        """See DemoCluster."""
        return f"{' '.join(self._elastic(plot))} --env {_ENVIRONMENT} -- python train.py"

    def submit_elastic(self, plot: Plot, out: Path) -> int:
        """See DemoCluster."""
        script = ["python", str(EXAMPLE / "train.py"), *plot.script_arguments(out / "elastic")]
        return self._submit(self._elastic(plot), script)

    def rigid_command(self, plot: Plot) -> str:
        """See DemoCluster."""
        return f"{' '.join(self._rigid(plot))} --env {_ENVIRONMENT} -- rigid.sh"

    def submit_rigid(self, plot: Plot, out: Path, shell: str) -> int:
        """See DemoCluster."""
        return self._submit(self._rigid(plot), ["sh", "-c", shell])

    def jobs(self) -> tuple[QueuedJob, ...]:
        """See DemoCluster."""
        try:
            return tuple(job for report in self._client.applications() for job in self._jobs_of(report))
        except IpcError as error:
            raise LabCommandFailed(str(error)) from error

    @staticmethod
    def _elastic(plot: Plot) -> list[str]:
        return ["flexo", "yarn", "submit", "--gpus", "1", "--elastic", f"1-{plot.most_workers}"]

    @staticmethod
    def _rigid(plot: Plot) -> list[str]:
        workers, gpus = str(plot.rigid_nodes), str(plot.gpus_per_node)
        return ["flexo", "yarn", "submit", "--name", "rigid", "--workers", workers, "--gpus", gpus]

    def _submit(self, request: list[str], command: list[str]) -> int:
        program = [str(_ENVIRONMENT / "bin" / request[0]), *request[1:]]
        done = self._lab.run([*program, "--json", "--env", str(_ENVIRONMENT), "--", *command])
        return int(json.loads(done.stdout)["job_id"])

    def _jobs_of(self, report: pb.ApplicationReport) -> Iterator[QueuedJob]:
        """The application as a job; instead of a flex application, each of its containers as a satellite."""
        held = self._containers(report)
        if base_of(report) is None:
            gang = gang_of(held)
            yield QueuedJob(
                job_id=records.application_number(report.application_id),
                state=_state(report, gang),
                reason="",
                gpus=tuple(self._gpus(each) for each in gang),
                satellite=False,
            )
            return
        for each in held:
            number = records.satellite_number(report.application_id, each.priority.priority)
            yield QueuedJob(number, "RUNNING", "", (self._gpus(each),), satellite=True)

    def _containers(self, report: pb.ApplicationReport) -> list[pb.ContainerReport]:
        if report.state != pb.RUNNING:
            return []
        try:
            found = self._client.containers(report.current_attempt_id)
        except IpcError:  # the application has just ended
            return []
        return records.living(found)

    def _gpus(self, container: pb.ContainerReport) -> tuple[str, int]:
        host = container.node_id.host
        return self._name_of.get(host, host), records.gpus(container.resource)


def _state(report: pb.ApplicationReport, gang: list[pb.ContainerReport]) -> str:
    """The state of an application, in Slurm's words, which the story uses."""
    if report.state in records.ENDED:
        return end_of(report)
    return "RUNNING" if report.state == pb.RUNNING and gang else "PENDING"
