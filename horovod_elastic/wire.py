"""What both ends of the conversations inside a job agree on besides the messages."""

from __future__ import annotations

import resource

from flexo_protos import keepalive

SECRET_KEY = "flexo-worker-secret"
"""Metadata key with the secret that an agent gives its workers, and that they present to it."""

ATTACH_AGENT = "/flexo.v1.LeaderService/AttachAgent"

_OVER = "over:"


def agents_proof(leader: str) -> str:
    """What an agent's MUNGE credential is made for: that leader (host:port), so that nobody can relay it."""
    return f"{ATTACH_AGENT}@{leader}"


def leaders_proof(leader: str) -> str:
    """What a leader's MUNGE credential, in the initial metadata of its answer, is made for."""
    return f"{ATTACH_AGENT}@{leader}/answer"


def job_number(job_id: str) -> int:
    """The number by which messages and plans name a job or satellite; 0 for "", one that has no id yet.

    Ids are strings in the job, because not every cluster numbers its jobs; on the wire they are integers.
    `job_number` and `job_id` are the only conversions. Raises ValueError for an id that is no number.
    """
    return int(job_id or 0)


def job_id(number: int) -> str:
    """The inverse of `job_number`."""
    return str(number) if number else ""


def over(exit_code: int) -> str:
    """Who holds a job's lease after its end: nobody, and whoever looks learns the job's exit code."""
    return f"{_OVER}{exit_code}"


def exit_code_of(holder: str) -> int | None:
    """The exit code that `over` has put into a lease's holder; None for any other holder."""
    code = holder.removeprefix(_OVER)
    return int(code) if code != holder and code.isdecimal() else None


CALLING_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy meant for the web must not come between two compute nodes
    ("grpc.max_receive_message_length", 1 << 20),
)
"""For a channel of single calls: pings between them are what a server may close it for (too_many_pings)."""

_MISSED = keepalive.noticing(quiet_s=20.0, answer_s=20.0)
"""By both ends: 40 s after a peer's host has vanished, its streams end."""

CHANNEL_OPTIONS = (
    *CALLING_OPTIONS,
    *_MISSED,
    ("grpc.keepalive_permit_without_calls", 1),
)
"""For a channel of streams."""

_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
_MOST_CONNECTIONS = 1 << 16 if _FILES == resource.RLIM_INFINITY else max(64, _FILES // 2)

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    *_MISSED,
    *keepalive.bearing_pings(every_s=10.0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 1 << 20),
    # Anybody can connect: they must not take up all the files that this process may open.
    ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A peer has one stream, or one call at a time.
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_connection_idle_ms", 120_000),
)
