"""Inside a job: launcher, leader, agents, rendezvous, workers. Shares only protos with flexod."""

import os

# Agents and data loaders fork; no child of theirs uses gRPC, so its fork handlers could only do harm.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
