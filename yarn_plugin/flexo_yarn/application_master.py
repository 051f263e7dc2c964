"""The ApplicationMaster's side of one application: it registers, asks and gives back by heartbeats, and ends.

The ResourceManager answers each heartbeat with what has changed. After a restart it does not know the
registration and the requests any more. Then this side registers and asks again; containers run on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from flexo_protos.hadoop import ipc_pb2
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.failover import FailoverClient, Servers
from flexo_yarn.ipc.client import Client
from flexo_yarn.ipc.connection import Address
from flexo_yarn.ipc.errors import RemoteError
from flexo_yarn.records import container_text

PROTOCOL: Final = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB"
_FORGOTTEN = "ApplicationMasterNotRegisteredException"
_GONE = "ApplicationAttemptNotFoundException"
_REPEATED = "InvalidApplicationMasterRequestException"
"""This ApplicationMaster has registered before: an answer was lost."""
ANSWER_S: Final = 20.0
"""The longest wait for the answer to a heartbeat: if the ResourceManager hangs, another one may be active."""
FINISH_PAUSE_S: Final = 0.1
"""Seconds between two requests to end the application."""
DEFAULT_RACK: Final = "/default-rack"
ANY: Final = "*"


class ApplicationGone(Exception):
    """The ResourceManager has ended the application, or this attempt of it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for containers of one priority. Each grant has its own: reports show nothing else of it."""

    priority: int
    resource: pb.Resource
    containers: int = 1
    node: str = ""
    """The host that the containers must be on; "": any."""
    rack: str = DEFAULT_RACK
    """The rack of that host."""
    label: str | None = None
    """The node label; "": nodes without one; None: what the queue's default says."""

    def for_containers(self, containers: int) -> Ask:
        """The same for another number of containers."""
        return replace(self, containers=containers)

    def requests(self) -> list[pb.ResourceRequest]:
        """YARN's requests for it. A host stands beside its rack and "*", which count but place nothing.

        Only the request for "*" may name a label.
        """

        def request(name: str, relax: bool, label: str | None = None) -> pb.ResourceRequest:
            return pb.ResourceRequest(
                priority=pb.Priority(priority=self.priority),
                resource_name=name,
                capability=self.resource,
                containers=self.containers,
                relax_locality=relax,
                node_label_expression=label,
            )

        if not self.node:
            return [request(ANY, True, self.label)]
        return [request(self.node, True), request(self.rack, False), request(ANY, False, self.label)]


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """What one heartbeat has brought."""

    allocated: tuple[pb.Container, ...] = ()
    recovered: tuple[pb.Container, ...] = ()
    """Containers of this application, which earlier attempts may have started. YARN also lists here, without
    a token, what it is about to allocate (seen on 3.5.0): ask the NodeManager which of them run."""
    completed: tuple[pb.ContainerStatus, ...] = ()
    preempted: frozenset[str] = frozenset()
    """Containers that YARN is about to take (see PreemptionMessage). It says so once."""
    resynchronized: bool = False
    """Whether the ResourceManager has restarted; `recovered` has then what it still knows of."""


class ApplicationMaster:
    """One attempt of an application at the ResourceManager, for one thread at a time.

    `servers`: where it listens; of several, the active one is called. `token`: what proves that this is its
    ApplicationMaster. `listens_at`: host and port for its clients.
    """

    def __init__(
        self,
        servers: Servers,
        token: ipc_pb2.Token,
        *,
        tracking_url: str = "",
        listens_at: Address = ("", 0),
    ) -> None:
        self.queue = ""
        """The queue, once it has registered."""
        self.maximum = pb.Resource()
        """The largest container that the cluster allows, once it has registered."""
        self.nm_tokens: dict[str, ipc_pb2.Token] = {}
        """By "HOST:PORT": what proves to a NodeManager who starts containers."""
        self.asks: dict[int, Ask] = {}
        """Requests that are not fulfilled yet, by priority."""
        self.token = token
        """The present one: YARN sends another one with a heartbeat, once a day by default."""
        self._client = FailoverClient(
            [Client(each, PROTOCOL, token=token, timeout_s=ANSWER_S) for each in servers]
        )
        self._tracking_url = tracking_url
        self._listens_at = listens_at
        self._released: dict[str, pb.ContainerId] = {}
        self._new: list[pb.ResourceRequest] = []
        self._unanswered: pb.AllocateRequest | None = None
        """A heartbeat without an answer. It may have been carried out, and YARN reads nothing new in a second
        one of the same number: it is sent again as it was."""
        self._resynchronizes = False
        """Whether the ResourceManager has restarted, and no heartbeat was answered since."""
        self._response_id = 0

    def register(self) -> tuple[pb.Container, ...]:
        """Register; return the containers of earlier attempts. Raises IpcError, ApplicationGone."""
        host, port = self._listens_at
        request = pb.RegisterApplicationMasterRequest(
            host=host, rpc_port=port, tracking_url=self._tracking_url
        )
        try:
            answer = self._client.call(
                "registerApplicationMaster", request, pb.RegisterApplicationMasterResponse
            )
        except RemoteError as error:
            if error.exception_class != _REPEATED:
                raise _gone_or(error) from error
            return ()  # what the lost answer had comes with heartbeats, but for queue and maximum
        self._response_id = 0
        self.queue = answer.queue
        self.maximum = answer.maximum_capability
        self._learn(answer.nm_tokens_from_previous_attempts)
        return tuple(answer.containers_from_previous_attempts)

    def ask(self, ask: Ask) -> None:
        """Ask for containers, with the next heartbeat."""
        self.asks[ask.priority] = ask
        self._new += ask.requests()

    def withdraw(self, priority: int) -> None:
        """Take a request back, with the next heartbeat. What was allocated meanwhile still comes."""
        if ask := self.asks.pop(priority, None):
            self._new += ask.for_containers(0).requests()

    def release(self, containers: Iterable[pb.ContainerId]) -> None:
        """Give containers back, with the next heartbeat."""
        self._released.update({container_text(each): each for each in containers})

    def heartbeat(self, progress: float = 0.0) -> HeartbeatResult:
        """Send what is new, and return what has changed. Raises IpcError, ApplicationGone."""
        if self._unanswered is None:
            self._unanswered = pb.AllocateRequest(
                ask=self._new,
                release=self._released.values(),
                response_id=self._response_id,
                progress=progress,
            )
            self._new, self._released = [], {}
        try:
            answer = self._client.call("allocate", self._unanswered, pb.AllocateResponse)
        except RemoteError as error:
            self._take_back()
            if error.exception_class == _FORGOTTEN:
                return self._resynchronize()
            raise _gone_or(error) from error
        if answer.HasField("command"):
            self._take_back()
            if answer.command == pb.AM_RESYNC:
                return self._resynchronize()
            raise ApplicationGone("the ResourceManager told the application to end")
        self._unanswered = None
        self._response_id = answer.response_id
        result = replace(self._read(answer), resynchronized=self._resynchronizes)
        self._resynchronizes = False
        return result

    def finish(self, status: pb.FinalApplicationStatus.ValueType, diagnostics: str = "") -> None:
        """End the application: ask until that is stored. Raises IpcError, ApplicationGone."""
        request = pb.FinishApplicationMasterRequest(
            final_status=status, diagnostics=diagnostics, tracking_url=self._tracking_url
        )
        try:
            while not self._ask_to_finish(request):
                time.sleep(FINISH_PAUSE_S)
        except RemoteError as error:
            raise _gone_or(error) from error
        finally:
            self.close()

    def _ask_to_finish(self, request: pb.FinishApplicationMasterRequest) -> bool:
        answer = self._client.call("finishApplicationMaster", request, pb.FinishApplicationMasterResponse)
        return answer.is_unregistered

    def close(self) -> None:
        """Close the connection; the application goes on."""
        self._client.close()

    def _read(self, answer: pb.AllocateResponse) -> HeartbeatResult:
        self._learn(answer.nm_tokens)
        if answer.HasField("am_rm_token"):
            self.token = answer.am_rm_token
            self._client.use(self.token)
        for container in answer.allocated_containers:
            self._fulfil(container.priority.priority)
        preemption = answer.preemption
        taken = [*preemption.strict_contract.containers, *preemption.contract.containers]
        return HeartbeatResult(
            allocated=tuple(answer.allocated_containers),
            recovered=tuple(answer.containers_from_previous_attempts),
            completed=tuple(answer.completed_containers),
            preempted=frozenset(container_text(each.id) for each in taken),
        )

    def _fulfil(self, priority: int) -> None:
        """Count a container of this priority: what the ResourceManager has given is asked for no more."""
        if (ask := self.asks.get(priority)) is None:
            return
        if ask.containers <= 1:
            del self.asks[priority]
        else:
            self.asks[priority] = ask.for_containers(ask.containers - 1)

    def _take_back(self) -> None:
        """Send what a refused heartbeat had with a later one."""
        if self._unanswered is not None:
            self._new[:0] = self._unanswered.ask
            self.release(self._unanswered.release)
            self._unanswered = None

    def _resynchronize(self) -> HeartbeatResult:
        """Register again. If the answer is lost, the next heartbeat is that of a new registration all the
        same."""
        self._response_id, self._resynchronizes = 0, True
        self._new = [request for ask in self.asks.values() for request in ask.requests()]
        kept = self.register()
        self._resynchronizes = False
        return HeartbeatResult(recovered=kept, resynchronized=True)

    def _learn(self, tokens: Iterable[pb.NmToken]) -> None:
        self.nm_tokens.update({f"{each.node_id.host}:{each.node_id.port}": each.token for each in tokens})


def _gone_or(error: RemoteError) -> Exception:
    return ApplicationGone(str(error)) if error.exception_class == _GONE else error
