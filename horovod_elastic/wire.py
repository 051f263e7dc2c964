"""The conventions that both ends of a connection inside a job share, besides the messages."""

from __future__ import annotations

from flexo_protos import keepalive
from flexo_protos.connections import ConnectionGuard
from horovod_elastic import open_files
from horovod_elastic.trace import say

SECRET_KEY = "flexo-worker-secret"
"""Metadata key with the secret that an agent gives its workers, and that workers present to the agent."""

ATTACH_AGENT = "/flexo.v1.LeaderService/AttachAgent"
PARK = "/flexo.v1.LeaderService/Park"
FETCH_PARKED = "/flexo.v1.LeaderService/FetchParked"
PIECE_BYTES = 512 * 1024
"""Length of the pieces in which a parked state travels; a message may have 1 MiB."""

_OVER = "over:"


def job_number(job_id: str) -> int:
    """The number by which messages and plans name a job or satellite; 0 for "", a satellite without id yet.

    Ids are strings in the job, because not every cluster numbers its jobs; on the wire they are integers.
    `job_number` and `job_id` are the only conversions. Raises ValueError for an id that is no number.
    """
    return int(job_id or 0)


def job_id(number: int) -> str:
    """The inverse of `job_number`."""
    return str(number) if number else ""


def over(exit_code: int) -> str:
    """The holder's name in the lease of a job that has ended; it tells callers the job's exit code."""
    return f"{_OVER}{exit_code}"


def exit_code_of(holder: str) -> int | None:
    """The exit code that `over` has put into a lease's holder; None for any other holder."""
    code = holder.removeprefix(_OVER)
    return int(code) if code != holder and code.isdecimal() else None


_NO_PROBES = ("grpc.http2.bdp_probe", 0)
"""gRPC pings the peer whenever something has come, to find out the bandwidth. These messages are small."""

CALLING_OPTIONS = (
    _NO_PROBES,
    ("grpc.enable_http_proxy", 0),  # a proxy meant for the web must not come between two compute nodes
    ("grpc.max_receive_message_length", 1 << 20),
)
"""Options of a channel for single calls. A server may close a channel for pings between calls
(too_many_pings), so this one sends none."""

_MISSED = keepalive.noticing(quiet_s=20.0, answer_s=20.0)
"""Keepalive options of both ends: 40 s after a peer's host has vanished, its streams end."""

CHANNEL_OPTIONS = (
    *CALLING_OPTIONS,
    *_MISSED,
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of a channel for streams."""

SILENT_OF_A_HOST = 64
"""Most connections of one host whose callers have not proven who they are. An agent does so at once."""

_SERVER_OPTIONS = (
    _NO_PROBES,
    ("grpc.so_reuseport", 0),
    *_MISSED,
    *keepalive.bearing_pings(every_s=10.0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A peer has one stream, or one call at a time.
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_connection_idle_ms", 120_000),
)


def server_options() -> tuple[tuple[str, int], ...]:
    """The options of a server of this process, under its present limit of open files."""
    # Anybody can connect. Connections must not take up all the files that this process may open.
    return (*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", open_files.connections()))


def guard_of(endpoint: str) -> ConnectionGuard:
    """A guard that closes idle connections of strangers to this process's server at `endpoint`, host:port."""
    port = int(endpoint.rpartition(":")[2])
    return ConnectionGuard(min(SILENT_OF_A_HOST, open_files.connections() // 4), port, warn=say)
