"""Part `slow_links`: Aggregators beside a ring over links of 100 Mb/s, with four workers on as many nodes.

Each node is a network namespace with a worker and an Aggregator. The rival is the torch core, whose
all-reduce is Gloo's ring, on the same links.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from flexo_bench.runtime import machine
from flexo_bench.runtime.results import Goal
from flexo_bench.service.comm import model_shapes
from flexo_bench.service.namespaces import INTERFACE, network
from flexo_bench.service.ratios import goal_line, ratio_of_medians
from flexo_bench.service.setting import Setting
from flexo_bench.service.systems import Node, System, Turn, reduce_gradients, system
from horovod_elastic.core.c10d.service import PART_VARIABLE

WORKERS = 4
RATE_MBIT = 100
RATE = f"{RATE_MBIT}mbit"
MODEL = "toy"
PART_KIB = 64
"""The best size of parts on such links."""
ITERATIONS, WARM = 3, 2
ROUNDS, QUICK_ROUNDS = 15, 2
AT_MOST: Final = 0.9
RING, SERVICE = SYSTEMS = ("ring", "service")


def measure(setting: Setting) -> dict[str, Any]:
    """Measure both in turns; see parts.Part."""
    shapes = model_shapes(MODEL)
    rounds = QUICK_ROUNDS if setting.quick else ROUNDS
    turns = _turns(shapes, rounds, setting)
    seconds = {name: [statistics.median(turn.seconds) for turn in turns[name]] for name in SYSTEMS}
    ratio = ratio_of_medians(seconds[SERVICE], seconds[RING])
    found: dict[str, Any] = {
        "ratio_vs_ring": ratio.value,
        "interval": [ratio.low, ratio.high],
        "ms": {name: 1e3 * statistics.median(seconds[name]) for name in SYSTEMS},
        "line_rate_ms": 1e3 * line_rate_s(_parameters(shapes) * 4, WORKERS, RATE_MBIT * 1e6),
        "setting": {
            "rate": RATE,
            "workers": WORKERS,
            "aggregators": WORKERS,
            "model": MODEL,
            "part_kib": PART_KIB,
        },
        "machine": machine.facts(),
        "rounds": {name: [asdict(turn) for turn in turns[name]] for name in SYSTEMS},
    }
    _show(found, _parameters(shapes))
    print(goal_line(Goal("slow_links.ratio_vs_ring", ratio.value, at_most=AT_MOST)))
    return {"slow_links": found}


def _turns(shapes: list[tuple[int, ...]], rounds: int, setting: Setting) -> dict[str, list[Turn]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-service-")))
        net = stack.enter_context(network(WORKERS, RATE))
        variables = {"HOROVOD_GLOO_IFACE": INTERFACE, PART_VARIABLE: str(PART_KIB)}
        nodes = [Node(1, host.address, host.prefix, host.enter, variables) for host in net.hosts]
        systems: dict[str, System] = {}
        for name in SYSTEMS:
            setting.tell(f"slow_links: {name}: starts")
            way = system(
                name,
                nodes,
                folder,
                aggregated=name == SERVICE,
                address=net.switch.address,
                meeting=net.at_switch,
            )
            systems[name] = stack.enter_context(way)
            systems[name].turn(reduce_gradients, shapes, WARM)
        turns: dict[str, list[Turn]] = {name: [] for name in SYSTEMS}
        for number in range(rounds):
            for name in SYSTEMS if number % 2 else SYSTEMS[::-1]:
                turns[name].append(systems[name].turn(reduce_gradients, shapes, ITERATIONS))
            latest = ", ".join(
                f"{name} {1e3 * statistics.median(turns[name][-1].seconds):.0f}" for name in SYSTEMS
            )
            setting.tell(f"slow_links: round {number + 1} of {rounds}, ms: {latest}")
        return turns


def line_rate_s(size: int, nodes: int, bits_per_s: float) -> float:
    """The least time in which so many bytes can be summed over nodes that have nothing but their own links.

    Each node sends the others their parts of its numbers, and then the sum of its own part: as much as in a
    ring. Workers send less if Aggregators are on nodes of their own.
    """
    return 2 * (nodes - 1) / nodes * size * 8 / bits_per_s


def _parameters(shapes: list[tuple[int, ...]]) -> int:
    return sum(map(math.prod, shapes))


def _show(found: Mapping[str, Any], parameters: int) -> None:
    low, high = found["interval"]
    print(f"\n{WORKERS} workers, links of {RATE}, {parameters / 1e6:.1f} million parameters | ms")
    print(f"  least that the links allow | {found['line_rate_ms']:.0f}")
    for name in SYSTEMS:
        print(f"  {name} | {found['ms'][name]:.0f}")
    print(f"  service over ring: {found['ratio_vs_ring']:.3f} ({low:.3f} to {high:.3f})")
