"""Simulated NodeManagers: they register with a real ResourceManager and beat, and start nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from flexo_protos.hadoop import resource_tracker_pb2 as tracker
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.ipc.client import Client
from flexo_yarn.ipc.connection import Address
from flexo_yarn.records import container_text, resource

PROTOCOL: Final = "org.apache.hadoop.yarn.server.api.ResourceTrackerPB"
GPUS, CORES, MEMORY_MIB = 8, 64, 262_144
"""What each node has."""
_PORT = 8041


class NodeRefused(Exception):
    """The ResourceManager refused a node, or has forgotten it."""


@dataclass(slots=True)
class SimulatedNode:
    """A node with a connection of its own. One thread beats; another one may add containers."""

    host: str
    client: Client
    running: dict[str, pb.ContainerId] = field(default_factory=dict)
    _ended: list[pb.ContainerId] = field(default_factory=list)
    _response_id: int = 0
    _container_key: tracker.MasterKey = field(default_factory=tracker.MasterKey)
    _nm_key: tracker.MasterKey = field(default_factory=tracker.MasterKey)

    @classmethod
    def numbered(cls, number: int, resource_tracker: Address) -> SimulatedNode:
        """The node with this number, from 0. Its name is an address, which nobody has to look up."""
        host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        return cls(host, Client(resource_tracker, PROTOCOL, user="root"))

    @property
    def node_id(self) -> pb.NodeId:
        """YARN's name of the node."""
        return pb.NodeId(host=self.host, port=_PORT)

    def register(self) -> None:
        """Register. Raises NodeRefused, IpcError."""
        request = tracker.RegisterNodeManagerRequest(
            node_id=self.node_id, http_port=8042, resource=resource(MEMORY_MIB, CORES, GPUS), version="3.5.0"
        )
        answer = self.client.call("registerNodeManager", request, tracker.RegisterNodeManagerResponse)
        if answer.HasField("action") and answer.action != tracker.NORMAL:
            raise NodeRefused(f"{self.host}: {answer.diagnostics}")
        self._container_key, self._nm_key = answer.container_token_key, answer.nm_token_key

    def start(self, container: pb.Container) -> None:
        """Report a container as running from the next beat on."""
        self.running[container_text(container.id)] = container.id

    def beat(self) -> None:
        """One heartbeat. Containers that the ResourceManager takes end at once.

        Raises NodeRefused, IpcError.
        """
        ended, self._ended = self._ended, []
        answer = self.client.call("nodeHeartbeat", self._request(ended), tracker.NodeHeartbeatResponse)
        if answer.HasField("action") and answer.action != tracker.NORMAL:
            raise NodeRefused(f"{self.host}: {answer.diagnostics}")
        self._response_id = answer.response_id
        if answer.HasField("container_token_key"):
            self._container_key = answer.container_token_key
        if answer.HasField("nm_token_key"):
            self._nm_key = answer.nm_token_key
        for each in answer.containers_to_clean_up:
            if self.running.pop(container_text(each), None) is not None:
                self._ended.append(each)

    def _request(self, ended: list[pb.ContainerId]) -> tracker.NodeHeartbeatRequest:
        statuses = [
            pb.ContainerStatus(container_id=each, state=pb.C_RUNNING) for each in list(self.running.values())
        ]
        statuses += [
            pb.ContainerStatus(container_id=each, state=pb.C_COMPLETE, exit_status=143) for each in ended
        ]
        health = tracker.NodeHealthStatus(is_healthy=True, report="", reported_at=int(time.time() * 1000))
        return tracker.NodeHeartbeatRequest(
            status=tracker.NodeStatus(
                node_id=self.node_id, response_id=self._response_id, containers=statuses, health=health
            ),
            container_token_key=self._container_key,
            nm_token_key=self._nm_key,
        )
