"""Applications on a YARN lab whose ApplicationMaster is the calling process: unmanaged ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.application_master import ApplicationMaster, Ask, HeartbeatResult
from flexo_yarn.failover import Servers
from flexo_yarn.records import application_text, container_text, resource
from flexo_yarn.resource_manager import ResourceManager

_ACCEPTED_S = 120.0


@dataclass(slots=True)
class UnmanagedApplication:
    """A running application, for one thread at a time."""

    application_id: pb.ApplicationId
    master: ApplicationMaster
    held: dict[str, pb.Container] = field(default_factory=dict)
    """Its containers, by name."""

    @classmethod
    def submit(
        cls, client: ResourceManager, scheduler: Servers, context: pb.ApplicationSubmissionContext
    ) -> UnmanagedApplication:
        """Submit it, wait until it is accepted, and register. Raises IpcError, TimeoutError.

        `client` calls as the owner: nobody else is told the application's token.
        """
        client.submit(context)
        deadline = time.monotonic() + _ACCEPTED_S
        while True:
            report = client.application(context.application_id)
            if report.state == pb.ACCEPTED and report.HasField("am_rm_token"):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{application_text(context.application_id)} is not accepted")
            time.sleep(0.02)
        master = ApplicationMaster(scheduler, report.am_rm_token)
        master.register()
        return cls(context.application_id, master)

    def ask(self, priority: int, containers: int, unit: pb.Resource, node: str = "") -> None:
        """Ask for containers, with the next beat."""
        self.master.ask(Ask(priority, unit, containers, node))

    def beat(self) -> HeartbeatResult:
        """One heartbeat, and what it has brought. Raises IpcError, ApplicationGone."""
        answer = self.master.heartbeat()
        self.held.update({container_text(each.id): each for each in answer.allocated})
        for status in answer.completed:
            self.held.pop(container_text(status.container_id), None)
        return answer

    def give_back(self, container: pb.Container) -> None:
        """Give a container back. Its GPUs are idle when this returns."""
        self.master.release([container.id])
        self.held.pop(container_text(container.id), None)
        self.beat()


def described(
    client: ResourceManager, name: str, queue: str, kind: str = "SPARK", tags: tuple[str, ...] = ()
) -> pb.ApplicationSubmissionContext:
    """A new application of this type (`kind`) in `queue`, not submitted yet."""
    return pb.ApplicationSubmissionContext(
        application_id=client.new_application().application_id,
        name=name,
        queue=queue,
        unmanaged_am=True,
        application_type=kind,
        keep_containers_across_attempts=True,
        resource=resource(64, 1, 0),
        am_container=pb.ContainerLaunchContext(),
        tags=tags,
    )
