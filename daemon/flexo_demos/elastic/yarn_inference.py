"""An inference application on a YARN lab, as the story needs one: it wants all of its servers, or none."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

from flexo_lab.errors import LabFailed
from flexo_lab.yarn import YarnLab
from flexo_lab.yarn.unmanaged import UnmanagedApplication, described
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import ApplicationGone
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.loan_settings import INFERENCE_QUEUE
from flexo_yarn.node_managers import ContainerRefused, NodeManagers
from flexo_yarn.records import application_number, resource

_BEAT_S: Final = 0.2
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
        client = lab.client("serving")
        try:
            context = described(client, "inference", INFERENCE_QUEUE, "INFERENCE")
            self._own = UnmanagedApplication.submit(client, lab.scheduler, context)
        except (IpcError, TimeoutError) as error:
            raise LabFailed(f"YARN does not let the inference application begin: {error}") from error
        finally:
            client.close()
        self.job_id = application_number(self._own.application_id)
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
            self._own.master.finish(pb.APP_SUCCEEDED)

    def _beat(self) -> None:
        """Heartbeats, until `close`, or until YARN has ended the application."""
        own, asked = self._own, False
        servers = NodeManagers(own.master.nm_tokens)
        while not self._over.wait(_BEAT_S):
            with self._lock:
                wants = self._wants
            if wants and not asked:
                own.ask(1, len(self.nodes), self._amount)
            elif asked and not wants:
                own.master.withdraw(1)
                own.master.release([each.id for each in own.held.values()])
                own.held.clear()
            asked = wants
            try:
                for container in own.beat().allocated:
                    servers.start(container, pb.ContainerLaunchContext(command=[_SERVES]))
            except ApplicationGone:
                return
            except (IpcError, ContainerRefused):
                continue
            if wants and self._served_at is None and len(own.held) >= len(self.nodes):
                self._served_at = time.time()
