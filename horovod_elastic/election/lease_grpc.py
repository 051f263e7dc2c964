"""Leader leases over gRPC: the client for flexod and for the job's own `flexo run`, and `flexo run`'s server.

The caller proves in each call who it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from flexo_protos import tls
from flexo_protos.credentials import METADATA_KEY, Authenticator, NotAuthentic
from flexo_protos.leader_leases import table
from flexo_protos.leader_leases.lease import LeaderLease, StoreUnavailable
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.v1 import leases_pb2 as pb
from flexo_protos.v1 import leases_pb2_grpc as rpc
from horovod_elastic.election.lease_client import ANSWER_WITHIN_S, JobRun
from horovod_elastic.network import NoAddress
from horovod_elastic.proofs import Doorkeeper, refuse
from horovod_elastic.streams import first
from horovod_elastic.wire import CALLING_OPTIONS, guard_of, job_number, server_options

_SERVICE = "/flexo.v1.LeaseService/"
_THREADS = 8
MESSAGE_WITHIN_S = 5.0
"""Longest time from a call's headers to its message."""
_DIAL_AGAIN = (  # gRPC's own pauses grow to two minutes: a leader would lose its lease meanwhile
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # failures of another channel do not count
)
_NAMES = {Kind.FLEXOD: "flexod", Kind.RUN: "flexo run"}


class GrpcLease:
    """The LeaseClient of one job, with one connection to each flexod that may be active.

    Raises StoreUnavailable if TLS is configured and cannot be used.
    """

    def __init__(self, place: LeasePlace, job: JobRun, authenticator: Authenticator) -> None:
        self._server = f"{_NAMES[place.kind]} at {','.join(place.hosts)}"
        self._job = pb.JobKey(job_id=job_number(job.job_id), restart_count=job.restart_count, run=place.run)
        self._authenticator = authenticator
        self._channels = [_channel(place.kind, host) for host in place.hosts]
        self._stubs = [rpc.LeaseServiceStub(channel) for channel in self._channels]
        self._within_s = ANSWER_WITHIN_S / len(place.hosts)

    def acquire(
        self,
        holder: str,
        address: str,
        ttl_s: float,
        claim: pb.Claim.ValueType = pb.CLAIM_UNSPECIFIED,
        seen: int = 0,
    ) -> LeaderLease:
        """See LeaseClient."""
        request = pb.AcquireRequest(
            job=self._job, holder=holder, address=address, ttl_s=ttl_s, claim=claim, seen=seen
        )
        return self._ask("Acquire", request)

    def look(self) -> LeaderLease:
        """See LeaseClient."""
        return self._ask("Look", pb.LookRequest(job=self._job))

    def release(self, holder: str, successor: str = "") -> LeaderLease:
        """See LeaseClient."""
        request = pb.ReleaseRequest(job=self._job, holder=holder, successor=successor)
        return self._ask("Release", request)

    def close(self) -> None:
        """See LeaseClient."""
        for channel in self._channels:
            channel.close()

    def _ask(self, name: str, request: object) -> LeaderLease:
        """The answer of the first server that answers. That server is asked first the next time."""
        trouble: StoreUnavailable | None = None
        for stub in list(self._stubs):
            try:
                answer = self._ask_one(stub, name, request)
            except StoreUnavailable as error:
                trouble = error
            else:
                self._stubs = [stub, *(other for other in self._stubs if other is not stub)]
                return answer
        assert trouble is not None
        raise trouble

    def _ask_one(self, stub: rpc.LeaseServiceStub, name: str, request: object) -> LeaderLease:
        try:
            metadata = ((METADATA_KEY, self._authenticator.credential(_SERVICE + name)),)
            method: Callable[..., pb.Lease] = getattr(stub, name)
            return table.from_message(method(request, metadata=metadata, timeout=self._within_s))
        except NotAuthentic as error:
            raise StoreUnavailable(str(error)) from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise StoreUnavailable(f"{self._server} is an older one, without leases") from error
            raise StoreUnavailable(f"{self._server} serves no leases now: {error.details()}") from error
        except ValueError as error:  # gRPC raises it for a channel that was closed meanwhile
            raise StoreUnavailable(f"{self._server}: {error}") from error


def _channel(kind: Kind, host: str) -> grpc.Channel:
    """A channel to flexod, as configured, or to the job's own `flexo run`, without TLS (no certificate)."""
    options = (*CALLING_OPTIONS, *_DIAL_AGAIN)
    if kind is Kind.RUN:
        return grpc.insecure_channel(host, options=options)
    try:
        return tls.channel(host, options)
    except tls.AuthorityUnusable as error:
        raise StoreUnavailable(f"flexod at {host}: {error}") from error


class LeaseServer:
    """The server of one job's lease, inside its `flexo run`, for its own user.

    It listens on a free port of `address` only. Raises NoAddress if this host has no such address.
    """

    def __init__(self, address: str, authenticator: Authenticator) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="leases"), options=server_options()
        )
        host = f"[{address}]" if ":" in address else address
        try:
            port = self._server.add_insecure_port(f"{host}:0")
        except RuntimeError as error:
            raise NoAddress(f"cannot listen on {address}, the address of this node ({error})") from error
        self.endpoint = f"{host}:{port}"
        """The server's host:port."""
        self._guard = guard_of(self.endpoint)
        self._server.add_generic_rpc_handlers((_Service(Doorkeeper(authenticator, self._guard)),))
        self._watching = ExitStack()

    def __enter__(self) -> LeaseServer:
        self._server.start()
        self._watching.enter_context(self._guard.watching())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        self._server.stop(grace=None).wait()


_Answer = Callable[[table.LeaseTable, int, Any, float], pb.Lease]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _Service(grpc.GenericRpcHandler):
    """The handler of LeaseService. It serves each method as a stream of bytes, although none is a stream.

    Otherwise gRPC would hold a thread until the message is there, before the caller's identity is checked.
    Here a stranger's call ends at its headers.
    """

    def __init__(self, door: Doorkeeper) -> None:
        self._door = door
        self._lock = threading.Lock()
        self._table = table.LeaseTable(time.monotonic())
        self._methods: dict[str, tuple[Callable[[bytes], Any], _Answer]] = {
            "Acquire": (pb.AcquireRequest.FromString, table.answer_acquire),
            "Look": (pb.LookRequest.FromString, table.answer_look),
            "Release": (pb.ReleaseRequest.FromString, table.answer_release),
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.GenericRpcHandler."""
        method = handler_call_details.method
        known = self._methods.get(method.removeprefix(_SERVICE)) if method.startswith(_SERVICE) else None
        if known is None:
            return None

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            yield self._answer(method, *known, requests, context).SerializeToString()

        return grpc.stream_stream_rpc_method_handler(serve)

    def _answer(
        self,
        method: str,
        parse: Callable[[bytes], Any],
        answer: _Answer,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> pb.Lease:
        uid = self._door.admit(context, method)
        hang_up = threading.Timer(MESSAGE_WITHIN_S, context.cancel)  # so that no thread waits for ever
        hang_up.start()
        try:
            request = parse(first(requests, context))
        except DecodeError as error:
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            hang_up.cancel()
        try:
            with self._lock:
                return answer(self._table, uid, request, time.monotonic())
        except table.BadRequest as error:
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except table.TooManyLeases as error:
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
