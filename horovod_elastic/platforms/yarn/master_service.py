"""The ApplicationMaster's gRPC server: what the leader asks for goes to the JobControl of its process."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import grpc

from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import yarn_pb2 as pb
from flexo_protos.v1 import yarn_pb2_grpc as rpc
from horovod_elastic import wire
from horovod_elastic.platforms.base import BaseState, Refused
from horovod_elastic.platforms.yarn.master_control import MasterControl
from horovod_elastic.platforms.yarn.messages import read_grant
from horovod_elastic.proofs import Doorkeeper
from horovod_elastic.streams import CLOSE_WITHIN_S, first, listen_on

SERVICE = "/flexo.v1.ApplicationMasterService/"
_T = TypeVar("_T")


class MasterService(rpc.ApplicationMasterServiceServicer):
    """The server, on a free port of `address` only. Raises NoAddress.

    `control` is set once the job's plan is known.
    """

    def __init__(self, address: str, authenticator: Authenticator) -> None:
        self.control: MasterControl | None = None
        self.hellos: queue.SimpleQueue[pb.LeaderHello] = queue.SimpleQueue()
        """What leaders have said of the job when they were attached."""
        self._server, self.endpoint = listen_on(address)
        guard = wire.guard_of(self.endpoint)
        self._door = Doorkeeper(authenticator, guard)
        rpc.add_ApplicationMasterServiceServicer_to_server(self, self._server)
        self._server.start()
        self._watching = ExitStack()
        self._watching.enter_context(guard.watching())

    def close(self) -> None:
        """End all streams and free the port."""
        self._watching.close()
        self._server.stop(grace=None).wait(CLOSE_WITHIN_S)

    def Submit(  # noqa: N802
        self, request: pb.SubmitSatelliteRequest, context: grpc.ServicerContext
    ) -> pb.SubmitSatelliteResponse:
        """See JobControl.submit."""
        control = self._admitted("Submit", context)
        satellite = _answered(context, lambda: control.submit(read_grant(request.grant)))
        return pb.SubmitSatelliteResponse(satellite_id=wire.job_number(satellite))

    def Find(  # noqa: N802
        self, request: pb.FindSatellitesRequest, context: grpc.ServicerContext
    ) -> pb.FindSatellitesResponse:
        """See JobControl.find."""
        control = self._admitted("Find", context)
        found = [
            pb.FoundSatellite(
                satellite_id=wire.job_number(each.id),
                grant_id=each.grant_id,
                node=each.node,
                workers=each.workers,
                runs=each.runs,
            )
            for each in _answered(context, control.find)
        ]
        return pb.FindSatellitesResponse(satellites=found)

    def GetStatus(  # noqa: N802
        self, request: pb.SatelliteStatusRequest, context: grpc.ServicerContext
    ) -> pb.SatelliteStatusResponse:
        """See JobControl.status."""
        control = self._admitted("GetStatus", context)
        statuses = _answered(context, lambda: control.status(map(wire.job_id, request.satellite_ids)))
        return pb.SatelliteStatusResponse(
            satellites=[
                pb.PlacedSatellite(
                    satellite_id=wire.job_number(each),
                    placed=status.placed,
                    reason=status.reason,
                    blocked=status.blocked,
                )
                for each, status in statuses.items()
            ]
        )

    def Cancel(  # noqa: N802
        self, request: pb.CancelSatellitesRequest, context: grpc.ServicerContext
    ) -> pb.CancelSatellitesResponse:
        """See JobControl.cancel."""
        control = self._admitted("Cancel", context)
        ids = [wire.job_id(number) for number in request.satellite_ids]
        _answered(context, lambda: control.cancel(ids, request.within_s))
        return pb.CancelSatellitesResponse()

    def TerminateBase(  # noqa: N802
        self, request: pb.TerminateBaseRequest, context: grpc.ServicerContext
    ) -> pb.TerminateBaseResponse:
        """See JobControl.terminate_base."""
        _answered(context, self._admitted("TerminateBase", context).terminate_base)
        return pb.TerminateBaseResponse()

    def GetBaseState(  # noqa: N802
        self, request: pb.BaseStateRequest, context: grpc.ServicerContext
    ) -> pb.BaseStateResponse:
        """See JobControl.base_state."""
        control = self._admitted("GetBaseState", context)
        return pb.BaseStateResponse(ended=control.base_state() is BaseState.ENDED)

    def AttachLeader(  # noqa: N802
        self, request_iterator: Iterator[pb.LeaderHello], context: grpc.ServicerContext
    ) -> Iterator[pb.FromMaster]:
        """Messages for the leader, until another leader is attached or this one is gone."""
        self._admit("AttachLeader", context)
        self.hellos.put(first(request_iterator, context))
        control = self._control_soon(context)
        messages = control.announcements.listen()
        context.add_callback(lambda: messages.put(None))
        while (message := messages.get()) is not None:
            yield message

    def _control_soon(self, context: grpc.ServicerContext) -> MasterControl:
        """The control; the call waits for it, and ends if the caller is gone."""
        while self.control is None:
            if not context.is_active():
                context.abort(grpc.StatusCode.CANCELLED, "the caller is gone")
            time.sleep(0.1)
        return self.control

    def _admitted(self, method: str, context: grpc.ServicerContext) -> MasterControl:
        self._admit(method, context)
        if self.control is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the job has not begun yet")
        assert self.control is not None
        return self.control

    def _admit(self, method: str, context: grpc.ServicerContext) -> None:
        self._door.admit_and_answer(context, SERVICE + method, self.endpoint)


def _answered(context: grpc.ServicerContext, ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except Refused as error:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise
