"""An inference application on a YARN lab, as the story needs one: it wants all of its servers, or none."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from flexo_lab.errors import LabFailed
from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import ApplicationGone, ApplicationMaster, Ask
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.loan_settings import INFERENCE_QUEUE
from flexo_yarn.node_managers import ContainerRefused, NodeManagers
from flexo_yarn.records import application_number, container_text, resource
from flexo_yarn.resource_manager import ResourceManager

_BEAT_S: Final = 0.2
_ACCEPTED_WITHIN_S: Final = 30.0
_SERVES = "exec sleep 3600"


class Inference:
    """The application. This process is its ApplicationMaster. Raises LabFailed.

    Each server's container takes all of its GPUs.
    """

    def __init__(self, lab: YarnLab) -> None:
        self.nodes = lab.spec.infer_names
        self._amount = resource(256, 1, lab.spec.gpus_per_node)
        self._lock = threading.Lock()
        self._wants = False
        self._asked_at = 0.0
        self._served_at: float | None = None
        self._held: dict[str, pb.ContainerId] = {}
        try:
            self.job_id, self._master = self._registered(lab)
        except IpcError as error:
            raise LabFailed(f"YARN does not let the inference application begin: {error}") from error
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="inference", daemon=True)
        self._thread.start()

    def want(self) -> float:
        """Ask for all servers. Returns the time of the request, in seconds since the epoch."""
        with self._lock:
            self._wants, self._asked_at, self._served_at = True, time.time(), None
            return self._asked_at

    def leave(self) -> None:
        """Give all servers back."""
        with self._lock:
            self._wants = False

    @property
    def served_at(self) -> float | None:
        """When the last server came that it had asked for; None: not all have."""
        return self._served_at

    def close(self) -> None:
        """End the application."""
        self._over.set()
        self._thread.join()
        with suppress(IpcError, ApplicationGone):
            self._master.finish(pb.APP_SUCCEEDED)

    @staticmethod
    def _registered(lab: YarnLab) -> tuple[int, ApplicationMaster]:
        client = ResourceManager(lab.clients, user="serving")
        try:
            context = pb.ApplicationSubmissionContext(
                application_id=client.new_application().application_id,
                name="inference",
                queue=INFERENCE_QUEUE,
                unmanaged_am=True,
                resource=resource(64, 1, 0),
                am_container=pb.ContainerLaunchContext(),
            )
            client.submit(context)
            deadline = time.monotonic() + _ACCEPTED_WITHIN_S
            while time.monotonic() < deadline:
                report = client.application(context.application_id)
                if report.state == pb.ACCEPTED and report.HasField("am_rm_token"):
                    master = ApplicationMaster(lab.scheduler, report.am_rm_token)
                    master.register()
                    return application_number(context.application_id), master
                time.sleep(_BEAT_S)
        finally:
            client.close()
        raise LabFailed(f"YARN accepts no application in the queue {INFERENCE_QUEUE}")

    def _beat(self) -> None:
        """Heartbeats, until `close`, or until YARN has ended the application."""
        servers = NodeManagers(self._master.nm_tokens)
        asked = False
        while not self._over.wait(_BEAT_S):
            with self._lock:
                wants = self._wants
            if wants and not asked:
                self._master.ask(Ask(1, self._amount, len(self.nodes)))
            elif asked and not wants:
                self._master.withdraw(1)
                self._master.release(self._held.values())
                self._held.clear()
            asked = wants
            try:
                result = self._master.heartbeat()
                for container in result.allocated:
                    servers.start(container, pb.ContainerLaunchContext(command=[_SERVES]))
                    self._held[container_text(container.id)] = container.id
            except ApplicationGone:
                return
            except (IpcError, ContainerRefused):
                continue
            if wants and self._served_at is None and len(self._held) >= len(self.nodes):
                self._served_at = time.time()
