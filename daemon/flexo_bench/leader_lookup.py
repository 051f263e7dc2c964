"""Measures how long 256 agents that ask at once take to learn their leader, from flexod and from etcd.

Amoeba (section 5.1) reports 7 ms on average and 33 ms at most for 256 workers on its cluster, against etcd.

The real parts are flexod's gRPC server with MUNGE (a munged with a key of its own), etcd, and the clients
that agents use (horovod_elastic/election). Each client has a connection of its own, and authenticates to
flexod with every call. (etcd is asked without a password: a client would send it once in minutes.)

The rest is not real. On a cluster each client has a machine to itself; here all clients share this machine's
cores with the servers and munged. Every client's time counts from one common moment. So most of the time of
the last clients is the other clients' work. To separate the two, the benchmark also measures one client
alone, and the server process's CPU time for a lookup (without munged's).

Connections are open already (an agent that lost its leader), or are made with the lookup (a new agent).

    python -m flexo_bench.leader_lookup [--clients 256] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from flexo.availability import leadership_guard
from flexo.service.admin_service import AdminService
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService
from flexo.service.server import ServiceRouter, all_services, listen
from flexo_bench.etcd_process import running
from flexo_protos.credentials import SOCKET_VARIABLE, new_authenticator
from flexo_protos.lease_place import Kind, LeasePlace, parse
from flexo_protos.v1 import leases_pb2 as pb
from horovod_elastic.election.lease_client import JobRun, LeaseClient
from horovod_elastic.election.lease_places import open_lease

JOB = JobRun("7", 0)
PROCESSES = 4
LEAD_S = 0.5
"""Time between the message to the client processes and their common start."""
ALONE = 200
"""Number of lookups of the one client that is alone."""
READY_WITHIN_S = 60.0
OPEN, CLOSED, LONE = "connections open", "connections made", "one client alone"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Times of a lookup of the lease in one store, over all clients and rounds."""

    store: str
    situation: str
    clients: int
    mean_ms: float
    median_ms: float
    max_ms: float
    mean_of_rounds_ms: tuple[float, float]
    """Means of the best round and of the worst."""
    server_cpu_ms: float
    """CPU time of the server's process for one lookup."""


@dataclass(frozen=True, slots=True)
class LeaderLookup:
    """All results, with Amoeba's figures for comparison."""

    cores: int
    processes: int
    rounds: int
    lookups: tuple[Lookup, ...]
    amoeba_mean_ms: float = 7.0
    amoeba_max_ms: float = 33.0


def measure(clients: int = 256, rounds: int = 5) -> LeaderLookup:
    """Run both servers and ask them in turn, `rounds` times. Takes under a minute; needs munged and etcd."""
    lookups: list[Lookup] = []
    with tempfile.TemporaryDirectory(prefix="flexo-lookup-") as folder:
        home = Path(folder)
        home.chmod(0o755)  # munged requires a folder that everybody can enter
        (home / "etcd").mkdir()
        with _munged(home), running(home / "etcd") as etcd, _flexod() as (address, flexod):
            assert etcd.process is not None
            servers = {
                LeasePlace(Kind.FLEXOD, (address,), run="bench"): flexod,
                LeasePlace(Kind.ETCD, (etcd.host,), run="bench"): etcd.process.pid,
            }
            for situation, number in ((LONE, 1), (OPEN, clients), (CLOSED, clients)):
                lookups += _in_turn(servers, situation, number, rounds)
    return LeaderLookup(os.cpu_count() or 1, PROCESSES, rounds, tuple(lookups))


def _in_turn(servers: dict[LeasePlace, int], situation: str, clients: int, rounds: int) -> Iterator[Lookup]:
    """Measure the stores in turn. `servers`: process id of each store's server."""
    times: dict[LeasePlace, list[list[float]]] = {place: [] for place in servers}
    cpu = dict.fromkeys(servers, 0.0)
    for place in servers:
        with contextlib.closing(open_lease(place, JOB, new_authenticator())) as store:
            store.acquire("leader", "10.0.0.1:1", 60.0, pb.CLAIM_FOUNDER)
    for _ in range(rounds):
        for place, server in servers.items():
            round_ = _round(place, server, situation, clients)
            times[place].append(round_.times_ms)
            cpu[place] += round_.server_cpu_s
    for place, in_rounds in times.items():
        together = [one for some in in_rounds for one in some]
        means = [statistics.fmean(some) for some in in_rounds]
        yield Lookup(
            store=place.kind.value,
            situation=situation,
            clients=clients,
            mean_ms=statistics.fmean(together),
            median_ms=statistics.median(together),
            max_ms=max(together),
            mean_of_rounds_ms=(min(means), max(means)),
            server_cpu_ms=cpu[place] * 1000 / len(together),
        )


def _cpu_s(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


@dataclass(frozen=True, slots=True)
class _Round:
    """Time of each client's lookup since the common start, and the server's CPU time for all lookups."""

    times_ms: list[float]
    server_cpu_s: float


def _round(place: LeasePlace, server: int, situation: str, clients: int) -> _Round:
    processes = 1 if situation == LONE else PROCESSES
    shares = [clients // processes + (number < clients % processes) for number in range(processes)]
    with contextlib.ExitStack() as stack:
        askers = [stack.enter_context(_asker(place, situation, share)) for share in shares]
        for asker in askers:
            _line(asker)  # "ready"
        before = _cpu_s(server)
        begin = time.monotonic() + LEAD_S
        for asker in askers:
            assert asker.stdin is not None
            asker.stdin.write(f"{begin}\n")
            asker.stdin.flush()
        times = [one for asker in askers for one in json.loads(_line(asker))]
        return _Round(times, _cpu_s(server) - before)


@contextlib.contextmanager
def _asker(place: LeasePlace, situation: str, clients: int) -> Iterator[subprocess.Popen[str]]:
    asked = ["--ask", str(place), situation, str(clients)]
    command = [sys.executable, "-m", "flexo_bench.leader_lookup", *asked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the benchmark has ended: {process.args!r}")
    return line


# --- in a process of clients ---


def _ask(place: LeasePlace, situation: str, clients: int) -> None:
    """Act as `clients` agents: print "ready", read the common start, print the time that each agent took."""
    stores = [open_lease(place, JOB, new_authenticator()) for _ in range(clients)]
    if situation != CLOSED:
        for store in stores:
            store.look()
    if situation == LONE:
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps([_timed(stores[0], time.monotonic()) for _ in range(ALONE)]), flush=True)
        return
    begun, times = threading.Event(), [0.0] * clients
    begin = 0.0

    def look(number: int) -> None:
        begun.wait()
        times[number] = _timed(stores[number], begin)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    time.sleep(max(0.0, begin - time.monotonic()))
    begun.set()
    for thread in threads:
        thread.join()
    print(json.dumps(times), flush=True)


def _timed(store: LeaseClient, begin: float) -> float:
    lease = store.look()
    took = (time.monotonic() - begin) * 1000
    if lease.holder != "leader":
        raise RuntimeError(f"the wrong leader: {lease}")
    return took


# --- the servers ---


@contextlib.contextmanager
def _munged(home: Path) -> Iterator[None]:
    """A munged with a key of its own, which serves every MUNGE call of this process and its children."""
    (home / "key").write_bytes(os.urandom(128))
    (home / "key").chmod(0o600)
    named = [f"--{name}-file={home / name}" for name in ("key", "log", "pid", "seed")]
    command = ["munged", "--force", "--foreground", f"--socket={home / 'socket'}", *named]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as munged:
        before = os.environ.get(SOCKET_VARIABLE)
        os.environ[SOCKET_VARIABLE] = str(home / "socket")
        try:
            _until((home / "socket").exists, "munged")
            yield
        finally:
            os.environ.pop(SOCKET_VARIABLE)
            if before is not None:
                os.environ[SOCKET_VARIABLE] = before
            munged.terminate()


@contextlib.contextmanager
def _flexod() -> Iterator[tuple[str, int]]:
    """flexod's complete server without a cluster, which leases do not need. Yields address and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "flexo_bench.leader_lookup", "--serve", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _line(process)  # "ready"
            yield address, process.pid
        finally:
            process.kill()


async def _serve(address: str) -> None:
    # No leader attaches, and no admin call arrives: these two services are placeholders.
    jobs, people = JobService.__new__(JobService), AdminService.__new__(AdminService)
    inference = InferenceService(None, frozenset(), lambda: None)
    router = ServiceRouter()
    router.activate(all_services(jobs, people, inference), leadership_guard.ALONE)
    server = await listen(address, new_authenticator(), router)
    print("ready", flush=True)
    await server.wait_for_termination()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start within {READY_WITHIN_S:.0f} s")
        time.sleep(0.02)


# --- the command ---


def lines(result: LeaderLookup) -> Iterator[str]:
    """The result as a table for people."""
    yield (
        f"{result.lookups[-1].clients} clients on {result.cores} cores, {result.rounds} rounds;"
        f" Amoeba's cluster: {result.amoeba_mean_ms:.0f} ms mean, {result.amoeba_max_ms:.0f} ms at most"
    )
    yield f"{'':8} {'':18} {'clients':>7} {'mean':>8} {'median':>8} {'max':>8}  {'rounds':>15} {'server':>9}"
    for one in result.lookups:
        low, high = one.mean_of_rounds_ms
        yield (
            f"{one.store:8} {one.situation:18} {one.clients:7} {one.mean_ms:6.1f}ms {one.median_ms:6.1f}ms"
            f" {one.max_ms:6.1f}ms  {low:6.1f}-{high:6.1f}ms {one.server_cpu_ms:7.3f}ms"
        )


def main() -> None:
    """Run the benchmark, or one of its processes (--ask, --serve)."""
    parser = argparse.ArgumentParser(prog="flexo_bench.leader_lookup")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        _ask(parse(options.ask[0]), options.ask[1], int(options.ask[2]))
        return
    if options.serve:
        asyncio.run(_serve(options.serve))
        return
    result = measure(options.clients, options.rounds)
    print("\n".join(lines(result)))
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


if __name__ == "__main__":
    main()
