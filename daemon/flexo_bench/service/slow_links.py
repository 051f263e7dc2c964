"""Part `slow_links`: Aggregators beside a ring over links of 100 Mb/s, with four workers on as many nodes.

Each node is a network namespace. `service`: four Aggregators of a pool sum, on nodes of their own.
`own_nodes`: the Aggregators beside the workers do without a pool. The rival is the torch core, whose
all-reduce is Gloo's ring, on the same links. At the end, one of the pool's links becomes ten times as slow.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.comm import model_shapes
from flexo_bench.service.namespaces import INTERFACE, Network, Traffic, network
from flexo_bench.service.ratios import Ratio, goal_line, ratio_of_medians
from flexo_bench.service.setting import Setting
from flexo_bench.service.systems import Node, System, Turn, reduce_gradients, system
from horovod_elastic.core.c10d.service import PART_VARIABLE

WORKERS = AGGREGATORS = 4
RATE_MBIT = 100
RATE = f"{RATE_MBIT}mbit"
MODEL = "toy"
PART_KIB = 64
"""The best size of parts on such links."""
ITERATIONS, WARM = 3, 2
ROUNDS, QUICK_ROUNDS = 15, 2
SLOWER_RATE, SLOWER_ITERATIONS = "10mbit", 15
"""The rate that the link of one Aggregator of the pool gets at last, and how many iterations follow."""
AT_MOST: Final = 0.9
RING, SERVICE, OWN_NODES = SYSTEMS = ("ring", "service", "own_nodes")


@dataclass(frozen=True, slots=True)
class Measured:
    """The turns of one system, and what has crossed each node's link in each turn."""

    turns: list[Turn]
    traffic: list[list[Traffic]]

    def seconds(self) -> list[float]:
        """The median iteration of each turn."""
        return [statistics.median(turn.seconds) for turn in self.turns]


def measure(setting: Setting) -> dict[str, Any]:
    """Measure all in turns; see parts.Part."""
    shapes = model_shapes(MODEL)
    measured, slower = _turns(shapes, QUICK_ROUNDS if setting.quick else ROUNDS, setting)
    ratio, own_nodes = (
        ratio_of_medians(measured[name].seconds(), measured[RING].seconds()) for name in (SERVICE, OWN_NODES)
    )
    found: dict[str, Any] = {
        "ratio_vs_ring": ratio.value,
        "interval": [ratio.low, ratio.high],
        "own_nodes_ratio_vs_ring": own_nodes.value,
        "own_nodes_interval": [own_nodes.low, own_nodes.high],
        "ms": {name: 1e3 * statistics.median(measured[name].seconds()) for name in SYSTEMS},
        "line_rate_ms": {
            name: 1e3 * least for name, least in least_s(_parameters(shapes) * 4, RATE_MBIT * 1e6).items()
        },
        "busiest_link_mb": {name: busiest_link(measured[name].traffic) / 1e6 for name in SYSTEMS},
        "one_slow_aggregator": {"rate": SLOWER_RATE, "ms": [1e3 * each for each in slower.seconds]},
        "setting": {
            "rate": RATE,
            "workers": WORKERS,
            "aggregators": AGGREGATORS,
            "model": MODEL,
            "part_kib": PART_KIB,
        },
        "machine": machine.facts(),
        "rounds": {name: [asdict(turn) for turn in measured[name].turns] for name in SYSTEMS},
    }
    _show(found, _parameters(shapes), {SERVICE: ratio, OWN_NODES: own_nodes})
    print(goal_line(Goal("slow_links.ratio_vs_ring", ratio.value, at_most=AT_MOST)))
    return {"slow_links": found}


def least_s(size: int, bits_per_s: float) -> dict[str, float]:
    """By system: the least time in which so many bytes can be summed over these links.

    In a ring, each of n nodes sends and receives 2 (n - 1) / n of the numbers. Aggregators beside the workers
    need as much: the other nodes' parts, and the sums of its own part for the others. With a pool, a worker's
    node sends all numbers and receives all sums, and an Aggregator its share of each worker's.
    """
    whole = size * 8 / bits_per_s
    around = 2 * (WORKERS - 1) / WORKERS * whole
    return {RING: around, SERVICE: max(1.0, WORKERS / AGGREGATORS) * whole, OWN_NODES: around}


def busiest_link(traffic: Sequence[Sequence[Traffic]]) -> float:
    """Of the link and direction that most crosses: the median of its bytes in an iteration."""
    most = [max(max(link.sent, link.received) for link in turn) / ITERATIONS for turn in traffic]
    return statistics.median(most)


def _turns(shapes: list[tuple[int, ...]], rounds: int, setting: Setting) -> tuple[dict[str, Measured], Turn]:
    """The turns of each system, and then one in which an Aggregator of the pool has a slower link."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-service-")))
        net = stack.enter_context(network(WORKERS + AGGREGATORS, RATE))
        systems: dict[str, System] = {}
        for name in SYSTEMS:
            setting.tell(f"slow_links: {name}: starts")
            systems[name] = stack.enter_context(_system(name, net, folder))
            systems[name].turn(reduce_gradients, shapes, WARM)
        measured: dict[str, Measured] = {name: Measured([], []) for name in SYSTEMS}
        for number in range(rounds):
            for name in SYSTEMS if number % 2 else SYSTEMS[::-1]:
                before = net.traffic()
                measured[name].turns.append(systems[name].turn(reduce_gradients, shapes, ITERATIONS))
                measured[name].traffic.append(
                    [now - then for now, then in zip(net.traffic(), before, strict=True)]
                )
            latest = ", ".join(f"{name} {1e3 * measured[name].seconds()[-1]:.0f}" for name in SYSTEMS)
            setting.tell(f"slow_links: round {number + 1} of {rounds}, ms: {latest}")
        setting.tell(f"slow_links: the link of one Aggregator of the pool has {SLOWER_RATE} now")
        net.set_rate(WORKERS + AGGREGATORS - 1, SLOWER_RATE)
        return measured, systems[SERVICE].turn(reduce_gradients, shapes, SLOWER_ITERATIONS)


def _system(name: str, net: Network, folder: Path) -> contextlib.AbstractContextManager[System]:
    variables = {"HOROVOD_GLOO_IFACE": INTERFACE, PART_VARIABLE: str(PART_KIB)}
    workers, others = net.hosts[:WORKERS], net.hosts[WORKERS:]
    return system(
        name,
        [Node(1, host.address, host.prefix, host.enter, variables) for host in workers],
        folder,
        aggregated=name != RING,
        pool=[Node(0, host.address, host.prefix) for host in others] if name == SERVICE else (),
        address=net.switch.address,
        meeting=net.at_switch,
    )


def _parameters(shapes: list[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def _show(found: Mapping[str, Any], parameters: int, ratios: Mapping[str, Ratio]) -> None:
    print(f"\n{WORKERS} workers, links of {RATE}, {parameters / 1e6:.1f} million parameters")
    print("  | ms | least that the links allow | MB on the busiest link | over the ring")
    for name in SYSTEMS:
        least, most = found["line_rate_ms"][name], found["busiest_link_mb"][name]
        print(f"  {name} | {found['ms'][name]:.0f} | {least:.0f} | {most:.2f} | {ratios.get(name, 1)}")
    slower = found["one_slow_aggregator"]
    times = ", ".join(f"{each:.0f}" for each in slower["ms"])
    print(f"  service, once an Aggregator's link has {slower['rate']} | {times}")
