"""The agent's gRPC server for the workers of its node, at a local socket.

The supervisor chooses the socket's name and the secret, so that workers find the next agent at the same
socket. The service refuses a caller without the secret.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import grpc

from flexo_protos.credentials import NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic.agent.parked_link import NoLeader, ParkedLink
from horovod_elastic.network import NoAddress
from horovod_elastic.streams import CLOSE_WITHIN_S, MAX_STREAMS, converse, first
from horovod_elastic.wire import SECRET_KEY, server_options

WorkerOutbox = queue.SimpleQueue[pb.ToWorker | None]


class Host(Protocol):
    """The agent's interface for its workers' streams, whose threads call it."""

    def worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """A worker has connected. Messages put into `outbox` are sent to it; None ends its stream."""
        ...

    def worker_said(self, worker_id: str, message: pb.FromWorker) -> None:
        """A worker has sent a message."""
        ...

    def worker_detached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """A worker's stream has ended."""
        ...


class LocalService(rpc.AgentServiceServicer):
    """See the module."""

    def __init__(self, host: Host, endpoint: str, secret: str, parked: ParkedLink) -> None:
        """Raises NoAddress. `parked`: passes parked states on."""
        self._host = host
        self._parked = parked
        self._secret = secret
        threads = ThreadPoolExecutor(max_workers=MAX_STREAMS, thread_name_prefix="worker")
        self._server = grpc.server(threads, options=server_options())
        try:
            self._server.add_insecure_port(endpoint)
        except RuntimeError as error:
            raise NoAddress(f"cannot listen at {endpoint}: {error}") from error
        rpc.add_AgentServiceServicer_to_server(self, self._server)
        self._server.start()

    def close(self) -> None:
        """End all streams and free the socket."""
        self._server.stop(grace=None).wait(CLOSE_WITHIN_S)

    def AttachWorker(  # noqa: N802
        self, request_iterator: Iterator[pb.FromWorker], context: grpc.ServicerContext
    ) -> Iterator[pb.ToWorker]:
        """The stream of one worker."""
        self._admit(context)
        hello = first(request_iterator, context).hello
        worker_id = hello.worker_id
        if hello.brief:
            for message in request_iterator:
                self._host.worker_said(worker_id, message)
            return
        outbox: WorkerOutbox = queue.SimpleQueue()
        self._host.worker_attached(worker_id, outbox)
        yield from converse(
            request_iterator,
            context,
            outbox,
            lambda message: self._host.worker_said(worker_id, message),
            lambda: self._host.worker_detached(worker_id, outbox),
        )

    def Park(  # noqa: N802
        self, request_iterator: Iterator[pb.ParkedPiece], context: grpc.ServicerContext
    ) -> pb.Parked:
        """Pass a worker's state on to the base, which keeps it."""
        self._admit(context)
        with _passing_on(context):
            return self._parked.park(request_iterator)

    def FetchParked(  # noqa: N802
        self, request: pb.ParkedWanted, context: grpc.ServicerContext
    ) -> Iterator[pb.ParkedPiece]:
        """Pass the base's parked state on to a worker."""
        self._admit(context)
        with _passing_on(context):
            yield from self._parked.fetch()

    def _admit(self, context: grpc.ServicerContext) -> None:
        metadata = dict(context.invocation_metadata())
        if not hmac.compare_digest(str(metadata.get(SECRET_KEY, "")), self._secret):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the secret that this agent gives its workers")


@contextlib.contextmanager
def _passing_on(context: grpc.ServicerContext) -> Iterator[None]:
    """End the call as the call to the leader's agent has ended."""
    try:
        yield
    except grpc.RpcError as error:
        context.abort(error.code(), str(error.details()))
    except (NoLeader, NotAuthentic) as error:
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
