"""How soon either end of a gRPC connection misses a peer that has vanished: for channels and servers alike.

A host that loses its power or its network closes nothing. Only pings without an answer tell.
"""

from __future__ import annotations

Options = tuple[tuple[str, int], ...]


def noticing(quiet_s: float, answer_s: float) -> Options:
    """The other end is pinged after `quiet_s` without a word, and given up `answer_s` later.

    The two options of that name are not enough: a ping without an answer has a minute of its own, and
    those of a stream on which nothing is said become rare (gRPC core, keepalive.md and chttp2_transport.cc;
    tried with grpcio 1.85).
    """
    answer_ms = round(answer_s * 1000)
    return (
        ("grpc.keepalive_time_ms", round(quiet_s * 1000)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


def bearing_pings(every_s: float) -> Options:
    """For a server: who pings no more often than that is not hung up on (too_many_pings).

    Without it, three pings within five minutes are too many where the server has nothing to say. gRPC core
    calls it GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, and heeds no option of that spelling.
    """
    return (("grpc.http2.min_ping_interval_without_data_ms", round(every_s * 1000)),)
