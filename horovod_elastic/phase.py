"""The phases of a worker, which workers report to their leader (workers.proto, WorkerPhase)."""

from __future__ import annotations

import enum

from flexo_protos.v1 import workers_pb2 as pb


class Phase(enum.Enum):
    """A phase of a worker; comments in workers.proto explain each. The values are those of the messages."""

    STARTING = pb.WORKER_PHASE_STARTING
    READY = pb.WORKER_PHASE_READY
    TRAINING = pb.WORKER_PHASE_TRAINING
    ARRIVED = pb.WORKER_PHASE_ARRIVED
    FINISHED = pb.WORKER_PHASE_FINISHED
