"""The JobControl of a leader on YARN: it asks the ApplicationMaster, which the ResourceManager knows."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from flexo_protos.credentials import Authenticator, NotAuthentic
from flexo_protos.hadoop import yarn_pb2 as hadoop
from flexo_protos.v1 import yarn_pb2 as pb
from flexo_protos.v1 import yarn_pb2_grpc as rpc
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.records import ENDED, application_text, numbered_application
from flexo_yarn.resource_manager import ResourceManager
from horovod_elastic import threads, wire
from horovod_elastic.job_plan import JobPlan
from horovod_elastic.platforms.base import (
    ANSWERS_WITHIN_S,
    ENDS_WITHIN_S,
    BaseState,
    Found,
    GrantedWorkers,
    Refused,
    SatelliteStatus,
)
from horovod_elastic.platforms.yarn import messages
from horovod_elastic.platforms.yarn.master_service import SERVICE
from horovod_elastic.proofs import ProvingCaller
from horovod_elastic.trace import say, say_error

PAUSE_S: Final = 2.0
"""Pause before the leader listens for preemptions again."""
_SLOW_S = 15.0
"""Allowance for the cluster beyond what a call itself may take."""
_T = TypeVar("_T")


class YarnJobControl:
    """JobControl over the job's ApplicationMaster. It keeps what the next attempt of that needs.

    It ends with the leader's process.
    """

    name = "YARN"

    def __init__(
        self, plan: JobPlan, authenticator: Authenticator, open_client: Callable[[], ResourceManager]
    ) -> None:
        self._plan = plan
        self._application = numbered_application(int(plan.base.job_id))
        self._authenticator = authenticator
        self._open_client = open_client
        self._lock = threading.Lock()
        self._master: _Master | None = None
        self._state = pb.MasterState()
        """What the ApplicationMaster has sent last, for its next attempt."""

    def launch_base(self, node: str, workers: int, *, again: bool = False) -> NoReturn:
        """The ApplicationMaster starts the base, and no leader. Raises OSError."""
        raise OSError("only the ApplicationMaster starts containers of the base")

    def terminate_base(self) -> None:
        """See JobControl."""
        self._ask("TerminateBase", pb.TerminateBaseRequest(), pb.TerminateBaseResponse)

    def base_state(self) -> BaseState:
        """See JobControl. Where the ApplicationMaster does not answer, the ResourceManager does."""
        try:
            answer = self._ask("GetBaseState", pb.BaseStateRequest(), pb.BaseStateResponse)
        except Refused:
            return BaseState.ENDED if self._has_ended() else BaseState.RUNS
        return BaseState.ENDED if answer.ended else BaseState.RUNS

    def submit(self, grant: GrantedWorkers) -> str:
        """See JobControl."""
        request = pb.SubmitSatelliteRequest(grant=messages.of_grant(grant))
        answer = self._ask("Submit", request, pb.SubmitSatelliteResponse)
        return wire.job_id(answer.satellite_id)

    def find(self) -> list[Found]:
        """See JobControl."""
        answer = self._ask("Find", pb.FindSatellitesRequest(), pb.FindSatellitesResponse)
        return [
            Found(wire.job_id(each.satellite_id), each.grant_id, each.node, each.workers, each.runs)
            for each in answer.satellites
        ]

    def status(self, satellite_ids: Iterable[str]) -> dict[str, SatelliteStatus]:
        """See JobControl."""
        request = pb.SatelliteStatusRequest(satellite_ids=map(wire.job_number, satellite_ids))
        answer = self._ask("GetStatus", request, pb.SatelliteStatusResponse)
        return {
            wire.job_id(each.satellite_id): SatelliteStatus(each.placed, each.reason, each.blocked)
            for each in answer.satellites
        }

    def cancel(self, satellite_ids: Iterable[str], within_s: float = ENDS_WITHIN_S) -> None:
        """See JobControl."""
        request = pb.CancelSatellitesRequest(
            satellite_ids=map(wire.job_number, satellite_ids), within_s=within_s
        )
        self._ask("Cancel", request, pb.CancelSatellitesResponse, within_s)

    def how_to_cancel(self, satellite_ids: Iterable[str]) -> str:
        """The command that ends the whole job: YARN has none for one container."""
        return f"yarn application -kill {application_text(self._application)}"

    def on_preemption(self, notice: Callable[[str, str], None]) -> None:
        """See PreemptionNotices."""
        threads.start(lambda: self._listen(notice), name="preemptions", failed=say_error)

    def _listen(self, notice: Callable[[str, str], None]) -> None:
        while True:
            try:
                master = self._connected()
                for message in master.attach(
                    lambda: pb.LeaderHello(plan=self._plan.to_text(), state=self._state)
                ):
                    if message.WhichOneof("body") == "state":
                        self._state = message.state
                    else:
                        told = message.preemption
                        notice(wire.job_id(told.satellite_id), told.reason)
            except Refused:
                pass
            except NotAuthentic as error:
                say(f"the leader tells the ApplicationMaster nothing: {error}")
                self._disconnect()
            except grpc.RpcError:
                self._disconnect()
            time.sleep(PAUSE_S)

    def _ask(
        self,
        method: str,
        request: Message,
        answer: type[_T],
        takes_s: float = ANSWERS_WITHIN_S,
    ) -> _T:
        """The answer of the ApplicationMaster, of type `answer`. Raises Refused."""
        try:
            return self._connected().ask(method, request, answer, takes_s + _SLOW_S)
        except NotAuthentic as error:
            self._disconnect()
            raise Refused(str(error)) from error
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                self._disconnect()  # a new attempt of the application listens elsewhere
                raise Refused(f"the ApplicationMaster does not answer: {error.details()}") from error
            raise Refused(str(error.details())) from error

    def _connected(self) -> _Master:
        with self._lock:
            if self._master is None:
                report = self._report()
                if not report.host or report.rpc_port <= 0:
                    raise Refused("the ApplicationMaster has not registered yet")
                host = f"[{report.host}]" if ":" in report.host else report.host
                self._master = _Master(f"{host}:{report.rpc_port}", self._authenticator)
            return self._master

    def _disconnect(self) -> None:
        with self._lock:
            if self._master is not None:
                self._master.channel.close()
                self._master = None

    def _report(self) -> hadoop.ApplicationReport:
        client = self._open_client()
        try:
            return client.application(self._application)
        except IpcError as error:
            raise Refused(f"the ResourceManager does not answer: {error}") from error
        finally:
            client.close()

    def _has_ended(self) -> bool:
        return self._report().state in ENDED


class _Master:
    """A connection to an ApplicationMaster, which proves in each call that it is of this job."""

    def __init__(self, address: str, authenticator: Authenticator) -> None:
        self.channel = grpc.insecure_channel(address, options=wire.CHANNEL_OPTIONS)
        self._stub = rpc.ApplicationMasterServiceStub(self.channel)
        self._proofs = ProvingCaller(authenticator, address)

    def ask(self, method: str, request: Message, answer: type[_T], within_s: float) -> _T:
        """The answer to a single call. Raises RpcError, NotAuthentic."""
        metadata = self._proofs.metadata(SERVICE + method)
        call: grpc.UnaryUnaryMultiCallable[Message, _T] = getattr(self._stub, method)
        said, told = call.with_call(request, metadata=metadata, timeout=within_s)
        self._proofs.check(SERVICE + method, told)
        return said

    def attach(self, hello: Callable[[], pb.LeaderHello]) -> Iterator[pb.FromMaster]:
        """What the ApplicationMaster tells. It hears `hello` once it has proven itself: a token is in it.

        Raises RpcError, NotAuthentic.
        """
        method = SERVICE + "AttachLeader"
        proven: queue.SimpleQueue[pb.LeaderHello | None] = queue.SimpleQueue()
        stream = self._stub.AttachLeader(iter(proven.get, None), metadata=self._proofs.metadata(method))
        try:
            if (
                stream.initial_metadata() or stream.is_active()
            ):  # else it was refused, and reading it says why
                self._proofs.check(method, stream)
                proven.put(hello())
            yield from stream
        finally:
            stream.cancel()
            proven.put(None)
