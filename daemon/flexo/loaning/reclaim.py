"""Chooses the servers on loan to reclaim, so that the fewest jobs are preempted (Lyra, slides, "Reclaiming").

A job whose base loses one server is preempted as a whole, so servers depend on each other. Once a job has
been preempted for one of its servers, the others cost that much less. Satellites are scaled in and cost
nothing here. Of servers that cost the same, those with the fewest satellite workers go first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from flexo_protos.resources import Amount, total


@dataclass(frozen=True, slots=True)
class BaseOn:
    """A job that has base workers on a server: it is preempted if that server is reclaimed."""

    job: str
    gpus: Amount = 1
    """GPUs of the job's whole base, wherever that is."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server on loan, with the facts that decide the cost of its reclaim."""

    name: str
    bases: tuple[BaseOn, ...] = ()
    satellite_workers: int = 0
    """Workers that are scaled in if the server is reclaimed."""


Chooser = Callable[[Sequence[Server], int], tuple[str, ...]]
"""Chooses this number of the servers, or all if there are fewer; returns them in the order of choice."""


def heuristic(servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
    """The greedy choice of Lyra (slides, "Low Overhead Greedy Heuristic").

    A server costs the sum, over the jobs with a base there, of 1 / (servers on loan that host the job's
    base). The cheapest server is taken, and all its jobs count as preempted from then on. This is repeated
    until there are enough.
    """
    hosts = _hosts(servers)
    # whole numbers instead of fractions, so that equal costs compare equal
    unit = math.lcm(*(len(names) for names in hosts.values()))
    left = {server.name: server for server in servers}
    cost = {server.name: sum(unit // len(hosts[base.job]) for base in server.bases) for server in servers}
    preempted: set[str] = set()
    chosen: list[str] = []
    while left and len(chosen) < wanted:
        best = min(
            left.values(), key=lambda server: (cost[server.name], server.satellite_workers, server.name)
        )
        chosen.append(best.name)
        del left[best.name]
        for base in best.bases:
            if base.job not in preempted:
                preempted.add(base.job)
                for name in hosts[base.job]:
                    cost[name] -= unit // len(hosts[base.job])
    return tuple(chosen)


def exact(servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
    """A choice that preempts the fewest jobs possible and, among such choices, scales in the fewest workers.

    It is an integer program: x of a server is 1 if it is reclaimed, y of a job is 1 if it is preempted. No x
    of a server is above the y of a job with a base there. It takes long if hundreds of jobs overlap.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    wanted = min(wanted, len(servers))
    if wanted <= 0:
        return ()
    jobs = {job: len(servers) + index for index, job in enumerate(_hosts(servers))}
    pairs = [(index, jobs[base.job]) for index, server in enumerate(servers) for base in server.bases]
    size = len(servers) + len(jobs)
    of_one_job = 1 + sum(server.satellite_workers for server in servers)
    costs = [*(float(server.satellite_workers) for server in servers), *([float(of_one_job)] * len(jobs))]
    enough = np.zeros((1, size))
    enough[0, : len(servers)] = 1.0
    constraints = [LinearConstraint(enough, wanted, wanted)]
    if pairs:
        rows = np.repeat(np.arange(len(pairs)), 2)
        columns = np.array(pairs).ravel()
        values = np.tile([1.0, -1.0], len(pairs))
        implied = coo_array((values, (rows, columns)), shape=(len(pairs), size))
        constraints.append(LinearConstraint(implied.tocsr(), -np.inf, 0.0))
    whole = np.ones(size, np.int8)
    found = milp(np.array(costs), constraints=constraints, bounds=Bounds(0, 1), integrality=whole)
    if found.x is None:
        raise ArithmeticError(f"no exact choice of {wanted} of {len(servers)} servers: {found.message}")
    return tuple(server.name for server, x in zip(servers, found.x, strict=False) if x > 0.5)


def smallest_jobs_first(servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
    """The servers whose jobs are the smallest in GPUs, each server judged by itself: for comparison."""

    def order(server: Server) -> tuple[Amount, int, str]:
        return total(base.gpus for base in server.bases), server.satellite_workers, server.name

    return tuple(server.name for server in sorted(servers, key=order)[: max(0, wanted)])


def random_choice(seed: int) -> Chooser:
    """A chooser of random servers, by the seed: for comparison."""
    source = random.Random(seed)

    def choose(servers: Sequence[Server], wanted: int) -> tuple[str, ...]:
        names = sorted(server.name for server in servers)
        return tuple(source.sample(names, min(max(0, wanted), len(names))))

    return choose


def preempted_by(servers: Sequence[Server], chosen: Collection[str]) -> frozenset[str]:
    """The jobs that are preempted if the `chosen` servers are reclaimed."""
    return frozenset(base.job for server in servers if server.name in chosen for base in server.bases)


def emptied_by(servers: Sequence[Server], chosen: Collection[str]) -> tuple[str, ...]:
    """Further servers that become empty, because all their bases are preempted with those of the `chosen`
    servers."""
    gone = preempted_by(servers, chosen)
    return tuple(
        server.name
        for server in servers
        if server.name not in chosen and server.bases and all(base.job in gone for base in server.bases)
    )


def _hosts(servers: Sequence[Server]) -> dict[str, list[str]]:
    """Per job: the servers that host its base."""
    hosts: dict[str, list[str]] = {}
    for server in servers:
        for base in server.bases:
            hosts.setdefault(base.job, []).append(server.name)
    return hosts
