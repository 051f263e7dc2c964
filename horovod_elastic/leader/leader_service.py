"""The leader's gRPC server: the streams of the job's agents, turned into the leader's events."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import grpc

from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import wire
from horovod_elastic.leader.leader import Leader
from horovod_elastic.platforms.base import agent_name
from horovod_elastic.proofs import Doorkeeper
from horovod_elastic.streams import CLOSE_WITHIN_S, MAX_STREAMS, converse, first, listen_on

STARTS_SERVING_WITHIN_S = 2.0
"""Longest time from an agent's getting the lease, which others see at once, until it serves as leader."""


class LeaderPort(rpc.LeaderServiceServicer):
    """An agent's server for the case that it leads.

    It listens from the agent's start, on a free port of `address` only. It serves while the agent leads.
    Raises NoAddress if this host has no such address.
    """

    def __init__(self, address: str, authenticator: Authenticator) -> None:
        self._leader: Leader | None = None
        self._leads = threading.Event()
        self._server, self.endpoint = listen_on(address)
        guard = wire.guard_of(self.endpoint)
        self._door = Doorkeeper(authenticator, guard)
        rpc.add_LeaderServiceServicer_to_server(self, self._server)
        self._server.start()
        self._watching = ExitStack()
        self._watching.enter_context(guard.watching())

    def start_serving(self, leader: Leader) -> None:
        """Let agents attach to `leader` from now on."""
        self._leader = leader
        self._leads.set()

    def stop_serving(self, leader: Leader) -> None:
        """Let no agent attach any more, because `leader` leads no more. It ends its open streams itself."""
        if self._leader is leader:
            self._leads.clear()
            self._leader = None

    def close(self) -> None:
        """End all streams and free the port."""
        self._watching.close()
        self._server.stop(grace=None).wait(CLOSE_WITHIN_S)

    def AttachAgent(  # noqa: N802
        self, request_iterator: Iterator[pb.FromAgent], context: grpc.ServicerContext
    ) -> Iterator[pb.ToAgent]:
        """Serve the stream of one agent. Both sides prove that they belong to the job's user."""
        self._door.admit_and_answer(context, wire.ATTACH_AGENT, self.endpoint)
        leader = self._leader if self._leads.wait(STARTS_SERVING_WITHIN_S) else None
        if leader is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this agent does not lead the job")
            return
        hello = first(request_iterator, context).hello
        if not hello.node or not 0 < hello.slots <= MAX_STREAMS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an agent says hello first: node and slots")
        name = agent_name(hello.node, wire.job_id(hello.slurm_job_id))
        outbox: queue.SimpleQueue[pb.ToAgent | None] = queue.SimpleQueue()
        leader.post(lambda: leader.agent_attached(name, hello, outbox))

        def heard(message: pb.FromAgent) -> None:
            leader.post(lambda: leader.agent_said(name, outbox, message))

        def ended() -> None:
            leader.post(lambda: leader.agent_detached(name, outbox))

        yield from converse(request_iterator, context, outbox, heard, ended)
