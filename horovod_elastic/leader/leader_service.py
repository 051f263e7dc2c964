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
from horovod_elastic.leader.parked_store import ParkedStore, Unwelcome
from horovod_elastic.platforms.base import agent_name
from horovod_elastic.proofs import Doorkeeper, refuse
from horovod_elastic.streams import CLOSE_WITHIN_S, MAX_STREAMS, converse, first, listen_on

STARTS_SERVING_WITHIN_S = 2.0
"""Longest time from an agent's getting the lease, which others see at once, until it serves as leader."""


class LeaderPort(rpc.LeaderServiceServicer):
    """An agent's server for the case that it leads.

    It listens from the agent's start, on a free port of `address` only. It serves while the agent leads.
    `parked`: the store of an opportunistic job's base; None in other jobs, and in satellites. Raises
    NoAddress if this host has no such address.
    """

    def __init__(self, address: str, authenticator: Authenticator, parked: ParkedStore | None = None) -> None:
        self._parked = parked
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
        leader = self._admit(context, wire.ATTACH_AGENT)
        hello = first(request_iterator, context).hello
        if not hello.node or hello.slots > MAX_STREAMS:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an agent says hello first: node and slots")
        name = agent_name(hello.node, wire.job_id(hello.slurm_job_id))
        outbox: queue.SimpleQueue[pb.ToAgent | None] = queue.SimpleQueue()
        leader.post(lambda: leader.agent_attached(name, hello, outbox))

        def heard(message: pb.FromAgent) -> None:
            leader.post(lambda: leader.agent_said(name, outbox, message))

        def ended() -> None:
            leader.post(lambda: leader.agent_detached(name, outbox))

        yield from converse(request_iterator, context, outbox, heard, ended)

    def Park(  # noqa: N802
        self, request_iterator: Iterator[pb.ParkedPiece], context: grpc.ServicerContext
    ) -> pb.Parked:
        """Keep the state of training that a worker of the job sends."""
        leader = self._admit(context, wire.PARK)
        store = self._store(context)
        try:
            store.keep(request_iterator, leader.welcomes)
        except Unwelcome as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except OSError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the base cannot keep the state: {error}")
        leader.post(leader.state_is_parked)
        return pb.Parked()

    def FetchParked(  # noqa: N802
        self, request: pb.ParkedWanted, context: grpc.ServicerContext
    ) -> Iterator[pb.ParkedPiece]:
        """Send the state that is kept."""
        self._admit(context, wire.FETCH_PARKED)
        yield from self._store(context).pieces()

    def _admit(self, context: grpc.ServicerContext, method: str) -> Leader:
        self._door.admit_and_answer(context, method, self.endpoint)
        leader = self._leader if self._leads.wait(STARTS_SERVING_WITHIN_S) else None
        if leader is None:
            refuse(context, grpc.StatusCode.UNAVAILABLE, "this agent does not lead the job")
        return leader

    def _store(self, context: grpc.ServicerContext) -> ParkedStore:
        if self._parked is None:
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "this job keeps no state in its base")
        return self._parked
