"""What both ends of the conversations inside a job agree on besides the messages."""

from __future__ import annotations

SECRET_KEY = "flexo-job-secret"
"""Metadata key with the job's secret: what workers present to their leader."""

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy meant for the web must not come between two compute nodes
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 1 << 20),
)

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 1 << 20),
)
