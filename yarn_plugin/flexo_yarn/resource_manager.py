"""A client's calls to the ResourceManager: submit, ask about applications and nodes, signal, and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from flexo_protos.hadoop import ipc_pb2
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.failover import FailoverClient, Servers
from flexo_yarn.ipc.client import Client
from flexo_yarn.ipc.connection import TIMEOUT_S
from flexo_yarn.ipc.errors import RemoteError
from flexo_yarn.kerberos import Kerberos

PROTOCOL: Final = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB"


class ResourceManager:
    """The ResourceManager, for one thread at a time.

    `servers`: where it listens; of several, the active one is called. It is called with a token, by Kerberos,
    or where there is no Kerberos, as `user`. `timeout_s`: the longest wait for one answer. Every method
    raises Unreachable, Refused, and RemoteError.
    """

    def __init__(
        self,
        servers: Servers,
        user: str = "",
        token: ipc_pb2.Token | None = None,
        kerberos: Kerberos | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._client = FailoverClient(
            [
                Client(each, PROTOCOL, token=token, kerberos=kerberos, user=user, timeout_s=timeout_s)
                for each in servers
            ]
        )

    def new_application(self) -> pb.GetNewApplicationResponse:
        """A new identifier, and the largest container that the cluster allows."""
        return self._client.call(
            "getNewApplication", pb.GetNewApplicationRequest(), pb.GetNewApplicationResponse
        )

    def delegation_token(self, renewer: str) -> ipc_pb2.Token:
        """A token for this caller's processes without tickets. `renewer`: the principal who may renew it."""
        request = pb.GetDelegationTokenRequest(renewer=renewer)
        return self._client.call("getDelegationToken", request, pb.GetDelegationTokenResponse).token

    def submit(self, context: pb.ApplicationSubmissionContext) -> None:
        """Submit an application."""
        request = pb.SubmitApplicationRequest(context=context)
        self._client.call("submitApplication", request, pb.SubmitApplicationResponse)

    def application(self, application: pb.ApplicationId) -> pb.ApplicationReport:
        """What the ResourceManager says of an application."""
        request = pb.GetApplicationReportRequest(application_id=application)
        return self._client.call("getApplicationReport", request, pb.GetApplicationReportResponse).report

    def applications(
        self,
        states: Collection[pb.ApplicationState.ValueType] = (),
        types: Collection[str] = (),
        queues: Collection[str] = (),
        tags: Collection[str] = (),
    ) -> Sequence[pb.ApplicationReport]:
        """All applications in these states, of these types, in these queues and with these tags; (): any."""
        request = pb.GetApplicationsRequest(states=states, application_types=types, queues=queues, tags=tags)
        return self._client.call("getApplications", request, pb.GetApplicationsResponse).applications

    def nodes(self, states: Collection[pb.NodeState.ValueType] = ()) -> Sequence[pb.NodeReport]:
        """All nodes in these states; (): any."""
        return self._client.call(
            "getClusterNodes", pb.GetClusterNodesRequest(states=states), pb.GetClusterNodesResponse
        ).nodes

    def queues(self) -> pb.QueueInfo:
        """The queue root, with all queues below it."""
        request = pb.GetQueueInfoRequest(queue="root", include_children=True, recursive=True)
        return self._client.call("getQueueInfo", request, pb.GetQueueInfoResponse).queue

    def containers(self, attempt: pb.ApplicationAttemptId) -> Sequence[pb.ContainerReport]:
        """The containers of an attempt of an application, those that wait for their start included."""
        request = pb.GetContainersRequest(application_attempt_id=attempt)
        return self._client.call("getContainers", request, pb.GetContainersResponse).containers

    def kill(self, application: pb.ApplicationId, why: str) -> bool:
        """End an application; return whether it has ended. Call again until it has."""
        request = pb.KillApplicationRequest(application_id=application, diagnostics=why)
        return self._client.call(
            "forceKillApplication", request, pb.KillApplicationResponse
        ).is_kill_completed

    def signal(self, container: pb.ContainerId, command: pb.SignalContainerCommand.ValueType) -> None:
        """Have a container's NodeManager signal it, with its next heartbeat."""
        request = pb.SignalContainerRequest(container_id=container, command=command)
        self._client.call("signalToContainer", request, pb.SignalContainerResponse)

    def signal_all(
        self, containers: Iterable[pb.ContainerId], command: pb.SignalContainerCommand.ValueType
    ) -> None:
        """The same for several. One that has ended meanwhile, which YARN refuses, keeps it from no other."""
        for each in containers:
            with suppress(RemoteError):
                self.signal(each, command)

    def set_lifetime(self, application: pb.ApplicationId, ends_at: float) -> None:
        """Let the ResourceManager end an application at this time (seconds since 1970)."""
        text = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000+0000")
        timeout = pb.UpdatedApplicationTimeout(type=pb.APP_TIMEOUT_LIFETIME, expire_time=text)
        request = pb.UpdateApplicationTimeoutsRequest(application_id=application, timeouts=[timeout])
        self._client.call("updateApplicationTimeouts", request, pb.UpdateApplicationTimeoutsResponse)

    def set_priority(self, application: pb.ApplicationId, priority: int) -> int:
        """Set an application's priority; return what the queue allows of it."""
        request = pb.UpdateApplicationPriorityRequest(
            application_id=application, priority=pb.Priority(priority=priority)
        )
        answer = self._client.call("updateApplicationPriority", request, pb.UpdateApplicationPriorityResponse)
        return answer.priority.priority

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._client.close()
