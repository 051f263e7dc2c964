"""Finds the Aggregators of a generation's nodes, and connects this rank with its own.

Every rank tells the others where its node's Aggregator is. If one has none, or the Aggregators do not meet,
the generation uses its own all-reduce, and says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path

from horovod_elastic.aggregation import control
from horovod_elastic.aggregation import place as place_of_aggregator
from horovod_elastic.aggregation.client import AggregationClient, SumsFailed
from horovod_elastic.aggregation.control import Assignment
from horovod_elastic.aggregation.memory import KeyShape
from horovod_elastic.aggregation.place import AggregatorPlace
from horovod_elastic.aggregation.plan import (
    LEAST_PART_BYTES,
    MOST_PART_BYTES,
    PART_BYTES,
    Plan,
    PlannedNode,
)
from horovod_elastic.core.c10d.broadcast_store import BroadcastStore
from horovod_elastic.core.interface import RankPlacement
from horovod_elastic.trace import say

STARTS_WITHIN_S = 5.0
"""Seconds in which a node's Aggregator, started beside its workers, must be there."""
MEET_WITHIN_S = 5.0
LOOK_S = 0.02
RESTS_S = 30.0
"""Seconds for which a worker does without Aggregators after they have failed. So a job goes on within 2 s."""
PART_VARIABLE = "FLEXO_AGGREGATION_PART_KIB"
"""Size of a sum's parts. Where links are slow, 64 is better than the default; elsewhere it costs CPU time.
Below the default, a connection holds one part at most (sockets.hold_at_most)."""
_failed_at: float | None = None


def note_failure() -> None:
    """Note that sums by Aggregators have failed in this process: the next generation does without."""
    global _failed_at
    _failed_at = time.monotonic()


def _rests() -> bool:
    return _failed_at is not None and time.monotonic() < _failed_at + RESTS_S


def connected(
    place: RankPlacement,
    store: BroadcastStore,
    given_up: Callable[[], bool],
    failed: Callable[[str], None],
    before: AggregationClient | None = None,
) -> AggregationClient | None:
    """This rank's client, once all of the generation's Aggregators have met; None if they do not.

    `before`: its client in the present generation. All ranks call it at the same time. Raises RuntimeError if
    the generation is given up.
    """
    folder = Path(os.environ.get(place_of_aggregator.VARIABLE, ""))
    own = None if _rests() else _own(folder, given_up)
    said = [] if own is None else [place.hostname, own.host, own.port, own.token]
    store.set(f"sums/{place.rank}", json.dumps(said))
    everybody = [json.loads(store.get(f"sums/{rank}")) for rank in range(place.size)]
    if not all(everybody):
        if place.rank == 0:
            without = [rank for rank, each in enumerate(everybody) if not each]
            say(f"ranks {without} have no Aggregator: this generation uses its all-reduce")
        return None
    path = str(place_of_aggregator.socket_path(folder))
    plan = _plan(place, everybody, _assigned(place, store, folder))
    expected = expected_keys(place, store, plan, before)
    client = AggregationClient(path, plan, place.rank, failed)
    try:
        client.connect(MEET_WITHIN_S, given_up)
        client.expect(expected)
    except SumsFailed as error:
        say(f"rank {place.rank} cannot use its Aggregator ({error}): this generation uses its all-reduce")
        client.close(in_order=False)
        return None
    return client


def _own(folder: Path, given_up: Callable[[], bool]) -> AggregatorPlace | None:
    limit = time.monotonic() + STARTS_WITHIN_S
    while folder != Path() and time.monotonic() < limit and not given_up():
        if (found := place_of_aggregator.read(folder)) is not None:
            return found
        time.sleep(LOOK_S)
    return None


def _assigned(place: RankPlacement, store: BroadcastStore, folder: Path) -> Assignment:
    """The assigned Aggregators that rank 0 knows, for all ranks."""
    if place.rank == 0:
        store.set("sums/pool", control.assignment_to_text(control.assignment(folder)))
    return control.assignment_from_text(store.get("sums/pool").decode())


def expected_keys(
    place: RankPlacement, store: BroadcastStore, plan: Plan, before: AggregationClient | None
) -> list[KeyShape]:
    """The keys that the generation will use, as far as rank 0 knows: those that it uses now.

    None are expected from a pool's Aggregator that serves the present generation, too: it counts what both
    register, and may allow no more than one of them.
    """
    if place.rank == 0:
        stays = before is not None and bool(before.plan.pool & plan.pool)
        shapes = [] if before is None or stays else before.used()
        store.set("sums/keys", json.dumps([astuple(shape) for shape in shapes]))
    return [KeyShape(*fields) for fields in json.loads(store.get("sums/keys"))]


def _plan(place: RankPlacement, everybody: list[list[object]], assignment: Assignment) -> Plan:
    ranks: dict[tuple[object, ...], list[int]] = {}
    for rank, (name, host, port, token) in enumerate(everybody):
        ranks.setdefault((name, host, port, token), []).append(rank)
    nodes = [
        PlannedNode(str(name), tuple(on_it), str(host), int(str(port)), str(token))
        for (name, host, port, token), on_it in ranks.items()
    ]
    run = f"{os.environ.get('FLEXO_JOB_ID', '')}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return control.with_assignment(Plan(run, place.generation, tuple(nodes), part_bytes()), assignment)


def part_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """The size of parts, as the environment of all workers has it. Raises RuntimeError if it cannot be."""
    text = environment.get(PART_VARIABLE) or str(PART_BYTES >> 10)
    least, most = LEAST_PART_BYTES >> 10, MOST_PART_BYTES >> 10
    if not text.isdecimal() or not least <= int(text) <= most:
        raise RuntimeError(f"{PART_VARIABLE}={text[:20]}: it has to be a number from {least} to {most}")
    return int(text) << 10
