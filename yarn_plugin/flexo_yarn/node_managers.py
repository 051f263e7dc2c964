"""Calls to NodeManagers: start an allocated container, stop it, and ask what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from flexo_protos.hadoop import ipc_pb2
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.ipc.connection import Connection
from flexo_yarn.ipc.errors import RemoteError, Unreachable
from flexo_yarn.ipc.framing import M
from flexo_yarn.records import container_text

PROTOCOL: Final = "org.apache.hadoop.yarn.api.ContainerManagementProtocolPB"


class ContainerRefused(Exception):
    """A NodeManager refused to start or to stop a container; the message has its words."""


@dataclass(frozen=True, slots=True)
class NodeManagers:
    """The NodeManagers of one application's containers. `tokens`: see ApplicationMaster.nm_tokens."""

    tokens: Mapping[str, ipc_pb2.Token]

    def start(self, container: pb.Container, launch: pb.ContainerLaunchContext) -> None:
        """Start an allocated container. Raises ContainerRefused, Unreachable, Refused."""
        request = pb.StartContainerRequest(launch_context=launch, container_token=container.container_token)
        answer = self._call(
            container.node_id,
            "startContainers",
            pb.StartContainersRequest(requests=[request]),
            pb.StartContainersResponse,
        )
        _raise_first(answer.failed)

    def stop(self, node: pb.NodeId, container: pb.ContainerId) -> None:
        """Stop a container: SIGTERM, then SIGKILL. Raises ContainerRefused, Unreachable, Refused."""
        request = pb.StopContainersRequest(container_ids=[container])
        answer = self._call(node, "stopContainers", request, pb.StopContainersResponse)
        _raise_first(answer.failed)

    def status(self, node: pb.NodeId, container: pb.ContainerId) -> pb.ContainerStatus:
        """The state of a container. Raises ContainerRefused for an unknown one, IpcError."""
        request = pb.GetContainerStatusesRequest(container_ids=[container])
        answer = self._call(node, "getContainerStatuses", request, pb.GetContainerStatusesResponse)
        _raise_first(answer.failed)
        return answer.statuses[0]

    def _call(self, node: pb.NodeId, method: str, request: Message, answer: type[M]) -> M:
        name = f"{node.host}:{node.port}"
        if (token := self.tokens.get(name)) is None:
            raise Unreachable(f"{method}: the ResourceManager has sent no token for the NodeManager {name}")
        connection = Connection((node.host, node.port), PROTOCOL, token=token)
        try:
            return connection.call(method, request, answer)
        except RemoteError as error:
            raise ContainerRefused(str(error)) from error
        finally:
            connection.close()


def _raise_first(failed: Iterable[pb.ContainerException]) -> None:
    for each in failed:
        raise ContainerRefused(f"{container_text(each.container_id)}: {each.exception.message}")
