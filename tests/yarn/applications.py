"""Applications on a YARN lab as tests need them: unmanaged ones, which this process is the master of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pytest

from flexo_lab.yarn import YarnLab, why_unavailable
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import records
from flexo_yarn.application_master import ApplicationMaster, Ask, HeartbeatResult
from flexo_yarn.ipc.errors import Unreachable
from flexo_yarn.node_managers import NodeManagers
from flexo_yarn.resource_manager import ResourceManager

BOUND_S = 60.0
"""How long anything may take: the machine may be busy."""
SMALL_MIB = 256
T = TypeVar("T")


def wait_for(what: str, found: Callable[[], T | None], bound_s: float = BOUND_S) -> T:
    """Wait until `found` returns something, and return it."""
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.1)
    raise AssertionError(f"waited {bound_s} s for {what}")


def require_yarn() -> None:
    """Fail where all tests have to run and there can be no YARN lab; elsewhere skip."""
    if reason := why_unavailable():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def submission(client: ResourceManager, queue: str, name: str) -> pb.ApplicationSubmissionContext:
    """An application that is not submitted yet; its ApplicationMaster is unmanaged."""
    return pb.ApplicationSubmissionContext(
        application_id=client.new_application().application_id,
        name=name,
        queue=queue,
        unmanaged_am=True,
        application_type="FLEXO",
        keep_containers_across_attempts=True,
        resource=records.resource(64, 1, 0),
        am_container=pb.ContainerLaunchContext(),
    )


def end_all(lab: YarnLab) -> None:
    """Kill what still runs, and wait until its containers are gone."""
    client = lab.client()

    def is_killed(application: pb.ApplicationId) -> bool:
        return client.kill(application, "the test ended")

    def is_empty() -> bool:
        return not any(node.containers for node in client.nodes([pb.NS_RUNNING]))

    alive = (pb.NEW, pb.NEW_SAVING, pb.SUBMITTED, pb.ACCEPTED, pb.RUNNING)
    for each in client.applications(states=alive):
        wait_for("an application to end", partial(is_killed, each.application_id))
    wait_for("all containers to end", is_empty)
    client.close()


@dataclass
class Application:
    """An unmanaged application, with this process as its ApplicationMaster."""

    lab: YarnLab
    application_id: pb.ApplicationId
    master: ApplicationMaster
    token: Token
    held: dict[str, pb.Container] = field(default_factory=dict)
    ended: dict[str, pb.ContainerStatus] = field(default_factory=dict)
    warned_at: dict[str, float] = field(default_factory=dict)
    """When a container's preemption was announced (time.monotonic)."""
    resynchronized: int = 0

    @classmethod
    def submit(cls, lab: YarnLab, queue: str, user: str = "root", name: str = "test") -> Application:
        """Submit it, and register."""
        client = lab.client(user)
        context = submission(client, queue, name)
        client.submit(context)

        def token() -> pb.ApplicationReport | None:
            report = client.application(context.application_id)
            return report if report.HasField("am_rm_token") and report.state == pb.ACCEPTED else None

        report = wait_for(f"an application in {queue} to be accepted", token)
        client.close()
        master = ApplicationMaster(lab.scheduler, report.am_rm_token)
        master.register()
        return cls(lab, context.application_id, master, report.am_rm_token)

    @staticmethod
    def kill(lab: YarnLab, application: pb.ApplicationId) -> None:
        """Kill an application, as `yarn application -kill` does."""
        client = lab.client()
        wait_for("an application to end", partial(client.kill, application, "the test kills it"))
        client.close()

    def beat(self) -> HeartbeatResult:
        """One heartbeat, patient with a ResourceManager that is away; what it has brought."""
        with suppress(Unreachable):
            answer = self.master.heartbeat()
            self.held.update({records.container_text(each.id): each for each in answer.allocated})
            for status in answer.completed:
                text = records.container_text(status.container_id)
                self.ended[text] = status
                self.held.pop(text, None)
            for text in answer.preempted:
                self.warned_at.setdefault(text, time.monotonic())
            self.resynchronized += answer.resynchronized
            return answer
        return HeartbeatResult()

    def wait_until(self, what: str, condition: Callable[[], T | None], bound_s: float = BOUND_S) -> T:
        """Heartbeats until `condition` returns something."""

        def beat_and_look() -> T | None:
            self.beat()
            return condition()

        return wait_for(what, beat_and_look, bound_s)

    def grow(self, priority: int, gpus: int, containers: int = 1, node: str = "") -> list[pb.Container]:
        """Ask for containers, and wait for them."""
        before = set(self.held)
        self.master.ask(Ask(priority, records.resource(SMALL_MIB, 1, gpus), containers, node))
        self.wait_until(f"{containers} containers", lambda: len(self.held) >= len(before) + containers)
        return [each for text, each in self.held.items() if text not in before]

    def start(self, container: pb.Container, script: str) -> None:
        """Run a shell script in an allocated container."""
        launch = pb.ContainerLaunchContext(command=[script])
        NodeManagers(self.master.nm_tokens).start(container, launch)

    def end(self) -> None:
        """End it successfully."""
        self.master.finish(pb.APP_SUCCEEDED)
