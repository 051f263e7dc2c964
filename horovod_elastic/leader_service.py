"""The leader's gRPC server: the streams of agents and workers, turned into the leader's events."""

from __future__ import annotations

import hmac
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc

from flexo_protos.credentials import METADATA_KEY, Authenticator, NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic.agent import ATTACH
from horovod_elastic.leader import Leader, agent_name
from horovod_elastic.network import NoAddress
from horovod_elastic.wire import SECRET_KEY, SERVER_OPTIONS

MAX_STREAMS = 1024
_Message = TypeVar("_Message")
_Outgoing = TypeVar("_Outgoing")


def serve(leader: Leader, address: str, authenticator: Authenticator) -> grpc.Server:
    """Start the server on a free port of `address` only, and tell the leader where it is.

    Raises NoAddress if this host has no such address.
    """
    server = grpc.server(
        ThreadPoolExecutor(max_workers=MAX_STREAMS, thread_name_prefix="stream"), options=SERVER_OPTIONS
    )
    rpc.add_LeaderServiceServicer_to_server(_Service(leader, authenticator), server)
    host = f"[{address}]" if ":" in address else address
    try:
        port = server.add_insecure_port(f"{host}:0")
    except RuntimeError as error:
        raise NoAddress(
            f"cannot listen on {address}, the address of this node: is it a node of the job? ({error})"
        ) from error
    leader.endpoint = f"{host}:{port}"
    server.start()
    return server


class _Service(rpc.LeaderServiceServicer):
    def __init__(self, leader: Leader, authenticator: Authenticator) -> None:
        self._leader = leader
        self._authenticator = authenticator

    def AttachAgent(  # noqa: N802
        self, request_iterator: Iterator[pb.FromAgent], context: grpc.ServicerContext
    ) -> Iterator[pb.ToAgent]:
        """The stream of one agent; the job's own user only, proven by MUNGE."""
        self._check_user(context)
        hello = _first(request_iterator, context).hello
        if not hello.node or not 0 < hello.slots <= MAX_STREAMS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an agent says hello first: node and slots")
        name = agent_name(hello.node, hello.slurm_job_id)
        leader = self._leader
        outbox: queue.SimpleQueue[pb.ToAgent | None] = queue.SimpleQueue()
        leader.post(lambda: leader.agent_attached(name, hello, outbox))

        def heard(message: pb.FromAgent) -> None:
            kind = message.WhichOneof("body")
            if kind == "worker_exited":
                gone = message.worker_exited
                leader.post(lambda: leader.worker_exited(gone.worker_id, gone.exit_code))
            elif kind == "leaving":
                leader.post(lambda: leader.agent_leaving(name, message.leaving.reason))

        ended = lambda: leader.post(lambda: leader.agent_detached(name))  # noqa: E731
        yield from _converse(request_iterator, context, outbox, heard, ended)

    def AttachWorker(  # noqa: N802
        self, request_iterator: Iterator[pb.FromWorker], context: grpc.ServicerContext
    ) -> Iterator[pb.ToWorker]:
        """The stream of one worker, which presents the job's secret."""
        metadata = dict(context.invocation_metadata())
        if not hmac.compare_digest(str(metadata.get(SECRET_KEY, "")), self._leader.secret):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not this job's secret")
        worker_id = _first(request_iterator, context).hello.worker_id
        leader = self._leader
        outbox: queue.SimpleQueue[pb.ToWorker | None] = queue.SimpleQueue()
        leader.post(lambda: leader.worker_attached(worker_id, outbox))

        def heard(message: pb.FromWorker) -> None:
            leader.post(lambda: leader.worker_said(worker_id, message))

        ended = lambda: leader.post(lambda: leader.worker_detached(worker_id))  # noqa: E731
        yield from _converse(request_iterator, context, outbox, heard, ended)

    def _check_user(self, context: grpc.ServicerContext) -> None:
        credential = dict(context.invocation_metadata()).get(METADATA_KEY, "")
        try:
            caller = self._authenticator.verify(str(credential), ATTACH)
        except NotAuthentic as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if caller.uid != os.getuid():
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "this job belongs to another user")


def _first(requests: Iterator[_Message], context: grpc.ServicerContext) -> _Message:
    try:
        return next(requests)
    except StopIteration:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing was said")
        raise


def _converse(
    requests: Iterator[_Message],
    context: grpc.ServicerContext,
    outbox: queue.SimpleQueue[_Outgoing | None],
    heard: Callable[[_Message], None],
    ended: Callable[[], None],
) -> Iterator[_Outgoing]:
    """Send what comes into `outbox` while a thread of its own listens; `ended` once, when either side is."""

    def listen() -> None:
        try:
            for message in requests:
                heard(message)
        except Exception:
            # grpc raises a bare Exception here when the stream breaks: that is what `ended` is for.
            pass
        ended()
        outbox.put(None)

    threading.Thread(target=listen, name="listen", daemon=True).start()
    context.add_callback(lambda: outbox.put(None))
    while (message := outbox.get()) is not None:
        yield message
