"""Recognises the workers that a script starts itself. They train in groups of their own, and are not flexo's.

A launcher in the script (`torch.multiprocessing.spawn`, `elastic_launch`) gives its processes ranks. Those of
one training process would all take themselves for it, because they inherit its environment.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os

from horovod_elastic.trace import say

_OUTLOOK, _JOB = "FLEXO_OUTLOOK", "FLEXO_JOB_ID"
_TOLD_WITHIN_S = 10.0


def _variables() -> tuple[str, ...]:
    return tuple(os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"))


def _are_the_agents(variables: tuple[str, ...]) -> bool:
    """Whether the variables of torchrun are those with which the agent started the training process."""
    return variables == (*os.environ.get(_OUTLOOK, "").split(",")[:2], os.environ.get(_JOB, ""))


@functools.cache
def began_as_worker() -> bool:
    """Whether the agent has started this process. Asked first before a script can set its variables anew."""
    return _are_the_agents(_variables())


def is_one(rank: int, world_size: int) -> bool:
    """Whether the script has started this process to be a worker among others.

    `rank`, `world_size`: as init_process_group is given them; -1 if it is not.
    """
    if not began_as_worker():
        return True
    if multiprocessing.parent_process() is None:
        return False
    return rank >= 0 or world_size >= 0 or not _are_the_agents(_variables())


@functools.cache
def say_so(rank: int, where: str) -> None:
    """Tell the user and the leader, once, that this job keeps its size. `where` the script connects them."""
    if (rank if rank >= 0 else int(os.environ.get("RANK", "0"))) == 0:
        why = f"the script starts its own workers, which init_process_group at {where} connects"
        say(
            f"this job keeps its size: {why}. Each process that flexo starts trains with its own workers only"
        )
        _tell_leader(why)


def _tell_leader(why: str) -> None:
    """Have the leader know. The training process itself may never connect to it."""
    import grpc

    from flexo_protos.v1 import workers_pb2 as pb
    from flexo_protos.v1 import workers_pb2_grpc as rpc
    from horovod_elastic.wire import CHANNEL_OPTIONS, SECRET_KEY

    hello = pb.WorkerHello(worker_id=os.environ["FLEXO_WORKER_ID"], pid=os.getpid(), brief=True)
    messages = pb.FromWorker(hello=hello), pb.FromWorker(status=pb.WorkerStatus(fixed_why=why))
    secret = (SECRET_KEY, os.environ["FLEXO_WORKER_SECRET"])
    with (
        contextlib.suppress(grpc.RpcError),  # training does not depend on it
        grpc.insecure_channel(os.environ["FLEXO_AGENT"], options=CHANNEL_OPTIONS) as channel,
    ):
        stub = rpc.AgentServiceStub(channel)
        list(
            stub.AttachWorker(iter(messages), metadata=(secret,), timeout=_TOLD_WITHIN_S, wait_for_ready=True)
        )
