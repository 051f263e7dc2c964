"""The part of flexo inside a job: launcher, leader, agents, rendezvous, workers. It shares only protos with
flexod.
"""

import os

# Agents and data loaders fork. Their children do not use gRPC, so gRPC's fork handlers could only do harm.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
