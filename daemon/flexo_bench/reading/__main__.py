"""python -m flexo_bench.reading: one large cluster, read with Slurm's commands and with pyslurm in turns."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from flexo.clusters.slurm.reader_pyslurm import PyslurmReader, is_installed
from flexo_bench.reading import cluster, content, queue
from flexo_bench.reading.content import Differences, Look
from flexo_bench.reading.figures import ROWS, Measured, middle, ratio, table
from flexo_bench.reading.looks import ANEW, COMMANDS, PYSLURM, Looker, cpu_clock
from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_lab import Lab
from flexo_lab.requirements import installed_release

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
READERS = (COMMANDS, ANEW, PYSLURM)
_READING = re.compile(
    r"^\s+REQUEST_(?:JOB|NODE|PARTITION)_INFO\w*\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)",
    re.MULTILINE,
)
_PAUSE_S = 1.0
"""The pause before each look. In its beginning slurmctld's own work is measured, too."""
Tell = Callable[[str], None]


def main() -> int:
    """0 whatever the readers differ in; an error if pyslurm cannot read."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with cluster.running(f"reading{os.getpid()}", options.nodes, tell) as lab:
        queue.fill(lab, options.nodes, options.jobs, tell)
        figures = _measured(lab, options, tell)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nwritten: {options.json}; repeat with: {figures['command']}", flush=True)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-reading",
        description=__doc__,
        epilog="Options go into ARGS: make bench-reading ARGS='--nodes 500 --jobs 500'",
    )
    parser.add_argument("--nodes", type=int, default=5000, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=4000, help="that run or wait (%(default)s)")
    parser.add_argument("--looks", type=int, default=20, help="with each reader (%(default)s)")
    parser.add_argument("--json", type=Path, default=BUILD / "reading.json", help="where the results go")
    options = parser.parse_args(arguments)
    for name, least, most in (("nodes", 300, 20_000), ("jobs", 100, 50_000), ("looks", 2, 1000)):
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} {getattr(options, name)}: {least} to {most} are allowed")
    if not is_installed():
        parser.error("pyslurm is not installed for this Python; make bench-reading makes a place where it is")
    return options


def _measured(lab: Lab, options: argparse.Namespace, tell: Tell) -> dict[str, object]:
    conf = lab.layout.slurm_conf
    lookers = {kind: Looker(kind, conf) for kind in READERS}
    try:
        tell("first looks")
        firsts = {kind: _look(lab, looker)[0] for kind, looker in lookers.items()}
        tell(f"{options.looks} looks with each reader")
        looks: dict[str, list[Measured]] = {kind: [] for kind in READERS}
        rounds, idle = [], []
        for turn in range(options.looks):
            seen = {}
            for kind in _in_turn(turn):
                idle.append(_idle(lab))
                measured, seen[kind] = _look(lab, lookers[kind])
                looks[kind].append(measured)
            rounds.append(content.differences(seen[COMMANDS], seen[PYSLURM]))
        tell("peak memory")
        peaks = {kind: looker.peak_mib() for kind, looker in lookers.items()}
    finally:
        for looker in lookers.values():
            looker.close()
    last = seen[COMMANDS]
    _print(firsts, looks, peaks, idle, rounds, last)
    return {
        "slurm": str(installed_release()),
        "pyslurm": _pyslurm(conf),
        **_counts(last),
        "first_look": {kind: asdict(look) for kind, look in firsts.items()},
        "looks": {kind: [asdict(look) for look in found] for kind, found in looks.items()},
        "slurmctld_cpu_s_a_second_between_looks": idle,
        "peak_mib": peaks,
        "differences": [asdict(each) for each in content.by_field(content.lasting(rounds))],
        "differences_of_a_round": [len(each) for each in rounds],
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_1_5_15_minutes_at_the_end": os.getloadavg(),
        },
        "command": _command(options),
    }


def _in_turn(turn: int) -> tuple[str, ...]:
    """The readers in an order that changes each round: what one leaves in caches serves another."""
    first = turn % len(READERS)
    return READERS[first:] + READERS[:first]


def _command(options: argparse.Namespace) -> str:
    """The command that repeats it."""
    words = [f"--{name} {getattr(options, name)}" for name in ("nodes", "jobs", "looks")]
    return f"make bench-reading ARGS='{' '.join(words)}'"


def _pyslurm(conf: Path) -> str:
    reader = PyslurmReader(conf, frozenset(), 60.0)
    try:
        return reader.version()
    finally:
        reader.close()


def _idle(lab: Lab) -> float:
    """slurmctld's processor time, as a part of a core, while nobody looks."""
    clock = cpu_clock(cluster.slurmctld_of(lab))
    before, began = clock(), time.monotonic()
    time.sleep(_PAUSE_S)
    return (clock() - before) / (time.monotonic() - began)


def _look(lab: Lab, looker: Looker) -> tuple[Measured, Look]:
    count, total_s = _rpcs(lab)
    clock = cpu_clock(cluster.slurmctld_of(lab))
    before = clock()
    cost, look = looker.look()
    cpu_s = clock() - before
    count_after, total_after_s = _rpcs(lab)
    measured = Measured(cost, cpu_s, count_after - count, total_after_s - total_s)
    return measured, replace(look, partitions=looker.partitions())


def _rpcs(lab: Lab) -> tuple[int, float]:
    """slurmctld's calls that ask for jobs, nodes or partitions: their number so far, and their time."""
    found = _READING.findall(lab.run(["sdiag"], timeout=120).stdout)
    return sum(int(count) for count, _ in found), sum(int(total) for _, total in found) / 1e6


def _counts(look: Look) -> dict[str, object]:
    states: dict[str, int] = {}
    for job in look.jobs:
        states[job.state.value] = states.get(job.state.value, 0) + 1
    return {
        "nodes": len(look.nodes),
        "unusable_nodes": sum(bool(node.unusable) for node in look.nodes),
        "jobs": len(look.jobs),
        "jobs_by_state": dict(sorted(states.items())),
    }


def _print(
    firsts: dict[str, Measured],
    looks: dict[str, list[Measured]],
    peaks: dict[str, tuple[float, float]],
    idle: list[float],
    rounds: list[Differences],
    last: Look,
) -> None:
    print(f"\n{_counts(last)}")
    for line in (
        *table(looks, peaks),
        *_ratios(looks),
        f"first look of each process: {', '.join(f'{k} {m.cost.wall_s:.2f} s' for k, m in firsts.items())}",
        f"slurmctld while nobody looks: {middle(idle)} of a core",
        *_told(rounds),
    ):
        print(line)


def _ratios(looks: dict[str, list[Measured]]) -> Iterator[str]:
    for row in (row for row in ROWS if not row.quiet):
        above = [row.of(look) for look in looks[PYSLURM]]
        for rival in (COMMANDS, ANEW):
            yield f"{row.name}: pyslurm to {rival}: {ratio(above, [row.of(look) for look in looks[rival]])}"


def _told(rounds: list[Differences]) -> Iterator[str]:
    found = content.lasting(rounds)
    counts = ", ".join(str(len(each)) for each in rounds)
    yield f"places that differ between commands and pyslurm: {len(found)} in all rounds ({counts} in each)"
    for each in content.by_field(found):
        yield f"  {each.title}: {each.count}"
        for example in each.examples:
            yield f"    {example.name}: commands {example.one[:200]}, pyslurm {example.other[:200]}"


if __name__ == "__main__":
    sys.exit(main())
