"""An agent passes its workers' parked states on to the base, and the base's parked state to its workers.

Each call has a connection of its own to the leader's agent, and both sides prove who they are before the
first byte of a state goes out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc

from flexo_protos.credentials import Authenticator
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import wire
from horovod_elastic.proofs import ProvingCaller

_OPTIONS = (*wire.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


class NoLeader(Exception):
    """This agent follows no leader now."""


class ParkedLink:
    """See the module. `leader`: returns the present leader's host:port; "" if there is none."""

    def __init__(self, authenticator: Authenticator, leader: Callable[[], str]) -> None:
        self._authenticator = authenticator
        self._leader = leader

    def park(self, pieces: Iterator[pb.ParkedPiece]) -> pb.Parked:
        """Pass a state on. Raises NoLeader, NotAuthentic and grpc.RpcError."""
        address, gate = self._address(), _Gate()
        caller = ProvingCaller(self._authenticator, address)
        with grpc.insecure_channel(address, options=_OPTIONS) as channel:
            metadata = caller.metadata(wire.PARK)
            call = rpc.LeaderServiceStub(channel).Park.future(gate.after(pieces), metadata=metadata)
            try:
                caller.check(wire.PARK, call)
                gate.proven = True
            except Exception:
                call.cancel()
                raise
            finally:
                gate.decided.set()
            return call.result()

    def fetch(self) -> Iterator[pb.ParkedPiece]:
        """The parked state. Raises NoLeader, NotAuthentic and grpc.RpcError."""
        address = self._address()
        caller = ProvingCaller(self._authenticator, address)
        with grpc.insecure_channel(address, options=_OPTIONS) as channel:
            metadata = caller.metadata(wire.FETCH_PARKED)
            stream = rpc.LeaderServiceStub(channel).FetchParked(pb.ParkedWanted(), metadata=metadata)
            caller.check(wire.FETCH_PARKED, stream)
            yield from stream

    def _address(self) -> str:
        address = self._leader()
        if not address:
            raise NoLeader("the job has no leader at the moment")
        return address


class _Gate:
    """Holds pieces back until the server has proven itself."""

    def __init__(self) -> None:
        self.decided = threading.Event()
        self.proven = False

    def after(self, pieces: Iterator[pb.ParkedPiece]) -> Iterator[pb.ParkedPiece]:
        """The pieces; none if the server proves nothing. They end early if their sender is gone."""
        self.decided.wait()
        if not self.proven:
            return
        try:
            yield from pieces
        except Exception:  # grpc raises a bare Exception when the worker's stream breaks
            return
