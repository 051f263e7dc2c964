"""What a worker says of itself: workers say it, leaders hear it (workers.proto, WorkerPhase)."""

from __future__ import annotations

import enum

from flexo_protos.v1 import workers_pb2 as pb


class Phase(enum.Enum):
    """See the comments in workers.proto. The values are those of the messages."""

    STARTING = pb.WORKER_PHASE_STARTING
    READY = pb.WORKER_PHASE_READY
    TRAINING = pb.WORKER_PHASE_TRAINING
    ARRIVED = pb.WORKER_PHASE_ARRIVED
    FINISHED = pb.WORKER_PHASE_FINISHED
