"""The agent's gRPC server on its node's loopback: the streams of the workers that it has started.

Any process of the node can reach the port; who does not present this agent's secret is turned away.
"""

from __future__ import annotations

import hmac
import queue
import secrets
from collections.abc import Iterator
from typing import Protocol

import grpc

from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic.streams import CLOSE_WITHIN_S, converse, first, listen_on
from horovod_elastic.wire import SECRET_KEY

LOOPBACK = "127.0.0.1"
WorkerOutbox = queue.SimpleQueue[pb.ToWorker | None]


class Host(Protocol):
    """The agent, as its workers' streams see it. Called from threads of theirs."""

    def worker_attached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """A worker is there; what comes into `outbox` is sent to it, None ends its stream."""
        ...

    def worker_said(self, worker_id: str, message: pb.FromWorker) -> None:
        """It has said something."""
        ...

    def worker_detached(self, worker_id: str, outbox: WorkerOutbox) -> None:
        """Its stream has ended."""
        ...


class LocalService(rpc.AgentServiceServicer):
    """See the module. `endpoint` and `secret` are for the workers' environment."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.secret = secrets.token_hex(16)
        self._server, self.endpoint = listen_on(LOOPBACK)
        rpc.add_AgentServiceServicer_to_server(self, self._server)
        self._server.start()

    def close(self) -> None:
        """End all streams and free the port."""
        self._server.stop(grace=None).wait(CLOSE_WITHIN_S)

    def AttachWorker(  # noqa: N802
        self, request_iterator: Iterator[pb.FromWorker], context: grpc.ServicerContext
    ) -> Iterator[pb.ToWorker]:
        """The stream of one worker."""
        metadata = dict(context.invocation_metadata())
        if not hmac.compare_digest(str(metadata.get(SECRET_KEY, "")), self.secret):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the secret that this agent gives its workers")
        worker_id = first(request_iterator, context).hello.worker_id
        outbox: WorkerOutbox = queue.SimpleQueue()
        self._host.worker_attached(worker_id, outbox)
        yield from converse(
            request_iterator,
            context,
            outbox,
            lambda message: self._host.worker_said(worker_id, message),
            lambda: self._host.worker_detached(worker_id, outbox),
        )
