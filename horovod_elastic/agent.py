"""One process a node of a job: starts the node's workers, watches them, tells the leader what became of them.

Started by srun, in the base and in each satellite. SIGTERM from Slurm reaches it and its workers alike; the
workers ignore it, the agent tells the leader, and the leader lets them go at a mini-batch boundary.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from flexo_protos.credentials import METADATA_KEY, Munge, NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import network, slurm_job
from horovod_elastic.wire import CHANNEL_OPTIONS

ATTACH = "/flexo.v1.LeaderService/AttachAgent"
CONNECT_TIMEOUT_S = 60
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
INJECT = Path(__file__).resolve().parent / "inject"


class Agent:
    """See the module."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        address = network.resolve(slurm_job.node_address(self._node, os.environ))
        self._interface = network.interface_of(address)
        self._outbox: queue.SimpleQueue[pb.FromAgent | None] = queue.SimpleQueue()

    def run(self) -> int:
        """Serve the leader until it dismisses this node. 0 then; 1 if the leader was lost."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        channel = grpc.insecure_channel(self._options.leader, options=CHANNEL_OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            print(
                f"flexo: the agent on {self._node} cannot reach its leader at {self._options.leader}",
                file=sys.stderr,
            )
            return 1
        self._outbox.put(pb.FromAgent(hello=self._hello()))
        stream = rpc.LeaderServiceStub(channel).AttachAgent(
            self._outgoing(), metadata=((METADATA_KEY, Munge().credential(ATTACH)),)
        )
        try:
            for message in stream:
                if not self._obey(message):
                    return 0
        except grpc.RpcError as error:
            print(f"flexo: the agent on {self._node} lost its leader: {error.details()}", file=sys.stderr)
        finally:
            self._kill_all()
        return 1

    def _hello(self) -> pb.AgentHello:
        return pb.AgentHello(
            slurm_job_id=int(os.environ.get("SLURM_JOB_ID", "0")),
            node=self._node,
            interface=self._interface,
            slots=self._options.slots,
            base=self._options.base,
        )

    def _outgoing(self) -> Iterator[pb.FromAgent]:
        while (message := self._outbox.get()) is not None:
            yield message

    def _obey(self, message: pb.ToAgent) -> bool:
        """Carry out one message; False when dismissed."""
        kind = message.WhichOneof("body")
        if kind == "start_worker":
            self._start(message.start_worker)
        elif kind == "kill_worker":
            self._kill(message.kill_worker.worker_id)
        return kind != "dismiss"

    def _start(self, order: pb.StartWorker) -> None:
        worker = subprocess.Popen(
            self._options.command,
            env=self._worker_environment(order),
            preexec_fn=_become_worker,
        )
        with self._lock:
            self._workers[order.worker_id] = worker
        threading.Thread(
            target=self._watch, args=(order.worker_id, worker), name=order.worker_id, daemon=True
        ).start()

    def _worker_environment(self, order: pb.StartWorker) -> dict[str, str]:
        environment = dict(os.environ)
        outlook = order.outlook
        place = (
            *(outlook.rank, outlook.size, outlook.local_rank),
            *(outlook.local_size, outlook.cross_rank, outlook.cross_size),
        )
        environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, [str(INJECT), environment.get("PYTHONPATH", "")])),
            FLEXO_WORKER_ID=order.worker_id,
            FLEXO_WORKER_SECRET=order.secret,
            FLEXO_LEADER=self._options.leader,
            FLEXO_NEWCOMER="1" if order.newcomer else "0",
            FLEXO_OUTLOOK=",".join(map(str, place)),
            HOROVOD_ELASTIC="1",
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_RANK="0",
            HOROVOD_SIZE="1",
            HOROVOD_LOCAL_RANK=str(order.slot),
            HOROVOD_LOCAL_SIZE=str(self._options.slots),
            HOROVOD_CROSS_RANK="0",
            HOROVOD_CROSS_SIZE="1",
            HOROVOD_HOSTNAME=self._node,
            HOROVOD_GLOO_IFACE=self._interface,
        )
        if order.newcomer:
            # Alone until it joins: the native core takes local and cross ranks at their word.
            environment.update(HOROVOD_LOCAL_RANK="0", HOROVOD_LOCAL_SIZE="1")
        environment.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "120")
        devices = environment.get("CUDA_VISIBLE_DEVICES", "")
        if self._options.gpus > 1 and devices:
            # One GPU a worker: all see all and pick by local rank, as Horovod scripts do. More: its own ones.
            mine = devices.split(",")[order.slot * self._options.gpus :][: self._options.gpus]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        return environment

    def _watch(self, worker_id: str, worker: subprocess.Popen[bytes]) -> None:
        exit_code = worker.wait()
        with self._lock:
            self._workers.pop(worker_id, None)
        self._outbox.put(
            pb.FromAgent(worker_exited=pb.WorkerExited(worker_id=worker_id, exit_code=exit_code))
        )

    def _kill(self, worker_id: str) -> None:
        with self._lock:
            worker = self._workers.get(worker_id)
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)

    def _kill_all(self) -> None:
        with self._lock:
            workers = list(self._workers)
        for worker_id in workers:
            self._kill(worker_id)

    def _on_sigterm(self, signum: int, frame: object) -> None:
        # SimpleQueue.put is safe inside a signal handler.
        self._outbox.put(pb.FromAgent(leaving=pb.AgentLeaving(reason="Slurm takes the node back (SIGTERM)")))


def _become_worker() -> None:
    """Between fork and exec: a process group of its own, deaf to SIGTERM until the script's Python is up.

    It dies with the agent: where Slurm tracks processes by parentage, an orphan would keep its GPU.
    """
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    """Entry point of `python -m horovod_elastic agent`."""
    parser = argparse.ArgumentParser(prog="horovod_elastic agent")
    parser.add_argument("--leader", required=True, help="host:port of the job's leader")
    parser.add_argument("--slots", type=int, required=True, help="workers that fit here")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of one worker")
    parser.add_argument("--base", action="store_true", help="this node belongs to the base")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the training command")
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    try:
        return Agent(options).run()
    except (NotAuthentic, network.NoAddress, slurm_job.NotInAJob) as error:
        print(f"flexo: the agent on {os.uname().nodename} cannot work: {error}", file=sys.stderr)
        return 1
