"""One process a node of a job: starts the node's workers, watches them, tells the leader what became of them.

Started by srun, in the base and in each satellite. SIGTERM from Slurm reaches it and its workers alike. In a
satellite the workers ignore it, the agent tells the leader, and the leader lets them go at a mini-batch
boundary. In the base it is the end of the job: workers die of it, or end as their script handles it.
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
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from flexo_protos.credentials import METADATA_KEY, Munge, NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import network, slurm_job
from horovod_elastic.wire import CHANNEL_OPTIONS
from horovod_elastic.worker.sigterm import SATELLITE

ATTACH = "/flexo.v1.LeaderService/AttachAgent"
CONNECT_TIMEOUT_S = 60
SIGTERM_GRACE_S = 25.0
"""How long workers of the base may take to end as their script handles SIGTERM; Slurm's KillWait is 30."""
COMMAND_NOT_RUN = 127
"""Exit code of a worker whose command cannot be run, as in a shell."""
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
        self._terminated = False
        address = network.own_address(
            slurm_job.node_address(self._node, os.environ), slurm_job.site(os.environ).controller
        )
        self._interface = network.interface_of(address)
        self._outbox: queue.SimpleQueue[pb.FromAgent] = queue.SimpleQueue()
        self._outbox.put(pb.FromAgent(hello=self._hello()))  # before anything that a signal may add

    def run(self) -> int:
        """Serve the leader until it dismisses this node. 0 then; 1 if the leader was lost."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            # sbatch --signal=USR1@60 is meant for the script. A handler, because workers inherit SIG_IGN.
            signal.signal(number, self._pass_on)
        channel = grpc.insecure_channel(self._options.leader, options=CHANNEL_OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            print(
                f"flexo: the agent on {self._node} cannot reach its leader at {self._options.leader}",
                file=sys.stderr,
            )
            return 1
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
            if self._terminated and self._options.base:
                self._wait_for_workers(SIGTERM_GRACE_S)
            self._kill_all()
        return 1

    def _hello(self) -> pb.AgentHello:
        return pb.AgentHello(
            slurm_job_id=int(os.environ.get("SLURM_JOB_ID", "0")),
            node=self._node,
            slots=self._options.slots,
            base=self._options.base,
        )

    def _outgoing(self) -> Iterator[pb.FromAgent]:
        while True:
            yield self._outbox.get()

    def _obey(self, message: pb.ToAgent) -> bool:
        """Carry out one message; False when dismissed."""
        kind = message.WhichOneof("body")
        if kind == "start_worker":
            self._start(message.start_worker)
        elif kind == "kill_worker":
            self._kill(message.kill_worker.worker_id)
        return kind != "dismiss"

    def _start(self, order: pb.StartWorker) -> None:
        try:
            worker = subprocess.Popen(
                self._options.command,
                env=self._worker_environment(order),
                preexec_fn=_become_worker if self._options.base else _become_worker_of_a_satellite,
            )
        except OSError as error:
            print(f"flexo: {self._options.command[0]} cannot be run: {error}", file=sys.stderr)
            self._say_exited(order.worker_id, COMMAND_NOT_RUN)
            return
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
        if not self._options.base:
            environment[SATELLITE] = "1"
        environment.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", "120")
        if devices := environment.get("CUDA_VISIBLE_DEVICES", ""):
            seen = devices_seen(devices.split(","), self._options.gpus, order.slot, outlook.local_rank)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen)
        return environment

    def _watch(self, worker_id: str, worker: subprocess.Popen[bytes]) -> None:
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        # While it is a zombie its number is nobody else's: what it left running would keep the GPU.
        with self._lock:
            _kill_group(worker.pid)
            self._workers.pop(worker_id, None)
        self._say_exited(worker_id, worker.wait())

    def _say_exited(self, worker_id: str, exit_code: int) -> None:
        exited = pb.WorkerExited(worker_id=worker_id, exit_code=exit_code)
        self._outbox.put(pb.FromAgent(worker_exited=exited))

    def _kill(self, worker_id: str) -> None:
        with self._lock:
            if worker := self._workers.get(worker_id):
                _kill_group(worker.pid)

    def _wait_for_workers(self, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while self._workers and time.monotonic() < deadline:
            time.sleep(0.1)

    def _kill_all(self) -> None:
        with self._lock:
            workers = list(self._workers)
        for worker_id in workers:
            self._kill(worker_id)

    def _pass_on(self, signum: int, frame: object) -> None:
        """Where Slurm signals only what it started itself, the script hears of it from its agent."""
        if self._options.pass_signals:
            for worker in list(self._workers.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signum)

    def _on_sigterm(self, signum: int, frame: object) -> None:
        self._terminated = True
        self._pass_on(signum, frame)
        # SimpleQueue.put is safe inside a signal handler.
        self._outbox.put(pb.FromAgent(leaving=pb.AgentLeaving(reason="Slurm takes the node back (SIGTERM)")))


def devices_seen(devices: list[str], gpus: int, slot: int, local_rank: int) -> list[str]:
    """The GPUs that the worker in `slot` sees: its own ones, or all if it has one only.

    Horovod scripts pick their GPU by local rank, once. Where that is not the slot, because a worker that was
    started again stands behind the one that lives, the slot's GPU is put where the script will look.
    """
    if gpus > 1:
        return devices[slot * gpus :][:gpus]
    if max(slot, local_rank) < len(devices):
        devices[slot], devices[local_rank] = devices[local_rank], devices[slot]
    return devices


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become_worker() -> None:
    """Between fork and exec: a process group of its own, which dies with the agent.

    Where Slurm tracks processes by parentage, an orphan would keep its GPU.
    """
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_worker_of_a_satellite() -> None:
    """Deaf to SIGTERM besides, until the script's Python is up (worker/sigterm.py)."""
    _become_worker()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    """Entry point of `python -m horovod_elastic agent`."""
    parser = argparse.ArgumentParser(prog="horovod_elastic agent")
    parser.add_argument("--leader", required=True, help="host:port of the job's leader")
    parser.add_argument("--slots", type=int, required=True, help="workers that fit here")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of one worker")
    parser.add_argument("--base", action="store_true", help="this node belongs to the base")
    parser.add_argument("--pass-signals", action="store_true", help="Slurm signals the agent alone")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the training command")
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    try:
        return Agent(options).run()
    except (NotAuthentic, network.NoAddress, slurm_job.NotInAJob) as error:
        print(f"flexo: the agent on {os.uname().nodename} cannot work: {error}", file=sys.stderr)
        return 1
