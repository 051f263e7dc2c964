"""Endless attacks on flexod, with an account or without one, on half a core.

`python -m flexo_bench.abuse.attacks NAME JOB_ID` runs as the attacker's user, who owns job JOB_ID.
It prints "attacking" and goes on until SIGTERM. Then it prints the part of a core that it has used.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from flexo_bench.abuse.raw_http2 import RawConnection
from flexo_protos.credentials import METADATA_KEY, new_authenticator
from flexo_protos.v1 import admin_pb2, jobs_pb2
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.leader.daemon_link import ATTACH

HALF_A_CORE = 0.5
STATUS = "/flexo.v1.AdminService/GetStatus"
NODES = "/flexo.v1.AdminService/ListNodes"
EVENTS = "/flexo.v1.AdminService/ListEvents"
SCALE = "/flexo.v1.AdminService/ScaleJob"
ACQUIRE = "/flexo.v1.LeaseService/Acquire"
NODE_NAMES = ("t1", "t2", "t3")
WORKERS_MAX = 16
_CONNECTIONS = 200
"""Connections that an attack keeps open. It closes the oldest for a new one."""
_PARALLEL = 400


class Attacker:
    """The attacker: its target, its credentials, its connections, and its budget of CPU time."""

    def __init__(self, job_id: int) -> None:
        address = daemon_address()
        assert address is not None
        self.job_id, self.target = job_id, address
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self._munge = new_authenticator()
        self._began = time.monotonic()
        self._spent = time.process_time()
        self._kept: deque[RawConnection] = deque()

    def proof(self, method: str) -> tuple[str, str]:
        """The metadata entry that proves who calls `method`."""
        return METADATA_KEY, self._munge.credential(method)

    def share(self) -> float:
        """Part of a core that all threads of this process have used so far."""
        return (time.process_time() - self._spent) / max(1e-9, time.monotonic() - self._began)

    def pause(self) -> None:
        """Wait until this process is within half a core again."""
        while (ahead_s := (time.process_time() - self._spent) / HALF_A_CORE) > (
            elapsed_s := time.monotonic() - self._began
        ):
            time.sleep(max(0.01, min(1.0, ahead_s - elapsed_s)))

    def dial(self, **options: int | bool) -> RawConnection | None:
        """Open one more connection and keep it; None if it is refused."""
        self.pause()
        while len(self._kept) >= _CONNECTIONS:
            self._kept.popleft().close()
        try:
            connection = RawConnection(self.address, **options)  # type: ignore[arg-type]
        except OSError:
            time.sleep(0.05)
            return None
        self._kept.append(connection)
        return connection


def headers_without_a_body(attacker: Attacker) -> None:
    """Open calls endlessly, and never send a message."""
    while True:
        if connection := attacker.dial():
            for method in (STATUS, ATTACH, ACQUIRE):
                connection.calls(method, 50)


def half_messages(attacker: Attacker) -> None:
    """Send half of each call's message, with and without a credential."""
    for proven in itertools.cycle((True, False)):
        if connection := attacker.dial():
            for _ in range(connection.most_streams or 50):
                metadata = [attacker.proof(EVENTS)] if proven else []
                connection.say(connection.call(EVENTS, metadata), bytes(1000), part=0.5)
            connection.flush()


def slow_reads(attacker: Attacker) -> None:
    """Ask for long lists and read the answers as slowly as possible."""
    request = admin_pb2.ListEventsRequest(limit=1000).SerializeToString()
    while True:
        if connection := attacker.dial(window=1, generous=False):
            both = itertools.cycle(((NODES, b""), (EVENTS, request)))
            for method, said in itertools.islice(both, connection.most_streams or 50):
                connection.say(connection.call(method, [attacker.proof(method)]), said)
            connection.flush()


def parallel_list_calls(attacker: Attacker) -> None:
    """Ask for lists over many connections at once."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.insecure_channel(attacker.target, options=options) for _ in range(8)]

    def ask(number: int) -> None:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channels[number % len(channels)].unary_unary(NODES)
        while True:
            attacker.pause()
            with suppress(grpc.RpcError):
                call(b"", metadata=(attacker.proof(NODES),), timeout=30)

    with ThreadPoolExecutor(_PARALLEL) as callers:
        list(callers.map(ask, range(_PARALLEL)))


def large_reports(attacker: Attacker) -> None:
    """Report far more satellites than the job can have, as its leader."""
    reports = [_report(10_000), _report(WORKERS_MAX), _report(6)]
    while True:
        with suppress(grpc.RpcError):
            _lead(attacker, itertools.chain.from_iterable(itertools.repeat(reports)))


def scale_loop(attacker: Attacker) -> None:
    """Scale the attacker's own job up and down as fast as flexod answers."""
    threading.Thread(target=_keep_leading, args=(attacker,), daemon=True).start()

    def scale(number: int) -> None:
        with grpc.insecure_channel(attacker.target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SCALE)
            for workers in itertools.cycle(range(1, WORKERS_MAX + 1)):
                attacker.pause()
                request = admin_pb2.ScaleJobRequest(job_id=attacker.job_id, workers=workers)
                with suppress(grpc.RpcError):
                    call(request.SerializeToString(), metadata=(attacker.proof(SCALE),), timeout=30)

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(scale, range(8)))


def self_tagged_pending_jobs(attacker: Attacker) -> None:
    """Submit held jobs that call themselves satellites."""
    for number in range(20):
        tag = f"flexo-satellite base={attacker.job_id} restart=0 grant=own{number} workers=4"
        node = NODE_NAMES[number % len(NODE_NAMES)]
        subprocess.run(
            ["sbatch", "-Q", "--hold", "--partition=flex", f"--nodelist={node}", "-n1", "--gres=gpu:1",
             f"--comment={tag}", "--output=/dev/null", "--wrap=sleep 600"],
            check=True, timeout=60,
        )  # fmt: skip
    _keep_leading(attacker)


def invented_grants(attacker: Attacker) -> None:
    """Report grants that flexod never made."""

    def reports() -> Iterator[bytes]:
        for turn in itertools.count():
            yield _report(len(NODE_NAMES), f"invented{turn}", workers=4, submitted=False)
            time.sleep(1.0)

    while True:
        with suppress(grpc.RpcError):
            _lead(attacker, reports())


def _keep_leading(attacker: Attacker) -> None:
    def reports() -> Iterator[bytes]:
        while True:
            yield jobs_pb2.FromLeader(report=jobs_pb2.Report(workers=1, scalable=True)).SerializeToString()
            time.sleep(4.0)

    while True:
        with suppress(grpc.RpcError):
            _lead(attacker, reports())


def _lead(attacker: Attacker, reports: Iterator[bytes]) -> None:
    """Act as the leader of the attacker's own job, and send `reports`. Raises grpc.RpcError."""
    hello = jobs_pb2.FromLeader(
        hello=jobs_pb2.Hello(
            job_id=attacker.job_id,
            workers=jobs_pb2.WorkerRange(min=1, max=WORKERS_MAX),
            shape=jobs_pb2.WorkerShape(gpus=1, cpus=1),
            base_nodes=["t1"],
            report=jobs_pb2.Report(workers=1, scalable=True),
        )
    )

    def said() -> Iterator[bytes]:
        yield hello.SerializeToString()
        for report in reports:
            attacker.pause()
            yield report

    attacker.pause()
    with grpc.insecure_channel(attacker.target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        attach: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(ATTACH)
        for _ in attach(said(), metadata=(attacker.proof(ATTACH),)):
            pass


def _report(satellites: int, name: str = "g", *, workers: int = 1, submitted: bool = True) -> bytes:
    return jobs_pb2.FromLeader(
        report=jobs_pb2.Report(
            workers=1,
            scalable=True,
            satellites=[
                jobs_pb2.Satellite(
                    slurm_job_id=1_000_000 + number if submitted else 0,
                    grant_id=f"{name}-{number}",
                    node=NODE_NAMES[number % len(NODE_NAMES)],
                    workers=workers,
                    state=jobs_pb2.SATELLITE_STATE_PENDING,
                )
                for number in range(satellites)
            ],
        )
    ).SerializeToString()


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    "headers_without_a_body": headers_without_a_body,
    "half_messages": half_messages,
    "slow_reads": slow_reads,
    "parallel_list_calls": parallel_list_calls,
    "large_reports": large_reports,
    "scale_loop": scale_loop,
    "self_tagged_pending_jobs": self_tagged_pending_jobs,
    "invented_grants": invented_grants,
}
AIMED_AT_GROWTH = ("self_tagged_pending_jobs", "invented_grants")
"""Attacks that take no workers from the victim, but keep it from growing."""


def main() -> None:
    """Attack until SIGTERM."""
    attacker = Attacker(int(sys.argv[2]))

    def end(*_: object) -> None:
        os.write(1, f"{attacker.share():.3f}\n".encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    print("attacking", flush=True)
    threading.Thread(target=ATTACKS[sys.argv[1]], args=(attacker,), daemon=True).start()
    while True:
        time.sleep(0.2)  # not signal.pause: the signal may reach another thread


if __name__ == "__main__":
    main()
