"""make bench-scale: flexod on thousands of nodes, tens of thousands of jobs, a thousand of them elastic."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexo_bench.runtime import machine
from flexo_bench.runtime.rivals import interrupt_on_sigterm
from flexo_bench.scale import cluster, queue, watch
from flexo_bench.scale.comparison import Ratio, ratio
from flexo_bench.scale.leaders import running
from flexo_bench.scale.queue import Base
from flexo_bench.scale.watch import Watched, percentile
from flexo_lab import Lab
from flexo_lab.errors import LabError

BUILD = Path(__file__).resolve().parents[3] / "build" / "bench"
GOALS = {"loop_p99_s": 2.0, "rss_mib": 1024.0, "slurmctld_rpc_ratio": 1.05}
"""Upper bounds at 5,000 nodes, 20,000 jobs and 1,000 leaders."""
SETTLE_S = 60.0
"""Time for slurmctld to settle after jobs have come or gone."""
_QUIET_S = 180.0
"""Time without a change after which growth is over: more than one cycle if reading Slurm takes seconds."""
_GRANTS_S = 1200.0
"""Limit for the first grants. While satellites come or go, only flexod's start-up would be measured."""
_GONE_S = 1200.0
"""Limit until slurmctld has ended all satellites."""
_AT_A_TIME = 25
"""Number of satellites to extend with one command.

It is also the number to end before slurmctld is asked which are left, including those that are still ending.
"""
_SATELLITES = ("squeue", "--noheader", "--partition=flex", "--format=%A")


@dataclass(frozen=True, slots=True)
class Stretches:
    """The watched stretches of time: in each turn one of each kind, and one more that is `alone`."""

    alone: list[Watched]
    """Stretches with neither flexod nor satellites."""
    beside: list[Watched]
    """Stretches with flexod, its satellites and their leaders."""
    satellites_only: list[Watched]
    """Stretches with the satellites but without flexod: more jobs are more work for slurmctld in any case."""
    satellites: list[int]
    """Per turn: satellites that ran beside flexod."""
    satellites_left: list[int]
    """Per turn: satellites that still ran at the end of the stretch without flexod."""


def main() -> None:
    """Watch a cluster without and with flexod in turns, print, write. A missed goal is no failure."""
    interrupt_on_sigterm()
    options = _parse(sys.argv[1:])
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with cluster.running(f"scale{os.getpid()}", options.nodes, options.max_satellites, tell) as lab:
        bases = queue.fill(lab, options.nodes, options.jobs, options.leaders, tell)
        seen = Stretches([_without(lab, options.seconds, tell)], [], [], [], [])
        for turn in range(options.turns):
            with _flexod(lab, bases) as folder:
                seen.satellites.append(_grown(lab, folder))
                tell(f"turn {turn + 1} of {options.turns}: {seen.satellites[-1]} satellites run")
                tell(f"turn {turn + 1} of {options.turns}: {options.seconds:.0f} s with flexod")
                seen.beside.append(watch.watch(lab, options.seconds, cluster.metrics_port(lab)))
            _let_outlast(lab, options.seconds + 2 * SETTLE_S, tell)
            seen.satellites_only.append(_without(lab, options.seconds, tell, " but with its satellites"))
            seen.satellites_left.append(len(running(folder)))
            tell(f"turn {turn + 1} of {options.turns}: {seen.satellites_left[-1]} satellites are left")
            _report(options, _figures(options, seen))
            _wait_until_gone(lab, tell)
            seen.alone.append(_without(lab, options.seconds, tell))
            _report(options, _figures(options, seen))


def _without(lab: Lab, seconds: float, tell: cluster.Tell, what: str = "") -> Watched:
    time.sleep(SETTLE_S)
    tell(f"{seconds:.0f} s without flexod{what}")
    return watch.watch(lab, seconds, None)


def _report(options: argparse.Namespace, figures: dict[str, object]) -> None:
    """Print and write the figures of the turns so far, so that a later failure does not lose them."""
    for line in _table(figures):
        print(line)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nwritten: {options.json}; repeat with: {figures['command']}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-scale",
        description=__doc__,
        epilog="Options go into ARGS: make bench-scale ARGS='--nodes 500 --jobs 2000 --leaders 100'",
    )
    parser.add_argument("--nodes", type=int, default=5000, help="each a real slurmd (%(default)s)")
    parser.add_argument("--jobs", type=int, default=20_000, help="in the queue, in all (%(default)s)")
    parser.add_argument("--leaders", type=int, default=1000, help="elastic jobs that run (%(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each stretch (%(default)s)")
    parser.add_argument(
        "--turns", type=int, default=2, help="with flexod, each between two without (%(default)s)"
    )
    parser.add_argument(
        "--max-satellites",
        type=int,
        default=150,
        help="[controller] max_satellites, about one for each idle node; 0: no limit (%(default)s)",
    )
    parser.add_argument("--json", type=Path, default=BUILD / "scale.json", help="where the results go")
    options = parser.parse_args(arguments)
    if not 10 <= options.nodes <= 20_000:
        parser.error(f"--nodes {options.nodes}: 10 to 20000 are allowed")
    if options.max_satellites < 0:
        parser.error(f"--max-satellites {options.max_satellites}: 0 or more are allowed")
    if not options.leaders <= options.jobs:
        parser.error(f"--leaders {options.leaders}: at most as many as --jobs, {options.jobs}, are allowed")
    return options


@contextlib.contextmanager
def _flexod(lab: Lab, bases: Sequence[Base]) -> Iterator[Path]:
    """flexod with a leader for each elastic job, during the context. Satellites run on after it.

    Yields the folder in which each satellite that runs has a file.
    """
    folder = lab.scratch / "satellites"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    lab.start_flexod()
    least, _, most = queue.WORKERS.partition("-")
    told = json.dumps([[base.job_id, base.node, int(least), int(most), base.started_at] for base in bases])
    command = [sys.executable, "-m", "flexo_bench.scale.leaders", str(folder)]
    environment = lab.environment()
    with (lab.layout.logs / "leaders.log").open("a") as log:
        leaders = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=log, text=True)
    try:
        assert leaders.stdin is not None
        leaders.stdin.write(told)
        leaders.stdin.close()
        yield folder
    finally:
        leaders.kill()
        leaders.wait()
        lab.stop_flexod()


def _grown(lab: Lab, folder: Path) -> int:
    """Wait until no satellites come or go for a while. Returns their number. Raises RuntimeError."""
    count, since, deadline = 0, time.monotonic(), time.monotonic() + _GRANTS_S
    while time.monotonic() < deadline and (not count or time.monotonic() - since < _QUIET_S):
        time.sleep(5)
        if not lab.flexod_processes():
            raise RuntimeError(f"flexod has ended: {(lab.layout.logs / 'flexod.log').read_text()[-500:]}")
        now = len(running(folder))
        if now != count:
            count, since = now, time.monotonic()
    time.sleep(SETTLE_S)
    return count


def _let_outlast(lab: Lab, seconds: float, tell: cluster.Tell) -> None:
    """Extend the time limits of all satellites to `seconds` from now, because flexod no longer does."""
    tell("extending all satellites' time limits once more")
    satellites = lab.run([*_SATELLITES, "--state=running"], timeout=_GONE_S).stdout.split()
    for first in range(0, len(satellites), _AT_A_TIME):
        some = ",".join(satellites[first : first + _AT_A_TIME])
        update = ["scontrol", "update", f"JobId={some}", f"EndTime=now+{seconds:.0f}seconds"]
        lab.run(update, check=False, timeout=_GONE_S)


def _wait_until_gone(lab: Lab, tell: cluster.Tell) -> None:
    """End all satellites, some at a time, because each slurmstepd that ends scans all processes.

    A query that slurmctld does not answer in time is repeated. Raises RuntimeError.
    """
    deadline = time.monotonic() + _GONE_S
    tell("ending all satellites")
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.SubprocessError, LabError):
            left = lab.run(list(_SATELLITES), timeout=_GONE_S).stdout.split()
            if not left:
                return
            lab.run(["scancel", "--quiet", *left[:_AT_A_TIME]], timeout=_GONE_S)
        time.sleep(2)
    raise RuntimeError(f"satellites are left {_GONE_S:.0f} s after the first scancel")


def _figures(options: argparse.Namespace, seen: Stretches) -> dict[str, object]:
    alone, beside = seen.alone, seen.beside
    cycles = tuple(each for watched in beside for each in watched.cycles_s)
    minutes = sum(watched.seconds for watched in beside) / 60
    whole, own = ratio(beside, alone), ratio(beside, seen.satellites_only)
    return {
        "nodes": options.nodes,
        "jobs": options.jobs,
        "leaders": options.leaders,
        "max_satellites": options.max_satellites,
        "satellites": seen.satellites,
        "satellites_left": seen.satellites_left,
        "loop_p50_s": percentile(cycles, 50),
        "loop_p99_s": percentile(cycles, 99),
        "loop_longest_s": max(cycles, default=float("nan")),
        "loops_s": [round(each, 3) for each in cycles],
        "loops_asking_slurm_s": [round(each, 3) for watched in beside for each in watched.asking_s],
        "rss_mib": max(watched.rss_mib for watched in beside),
        "flexod_cpu": statistics.fmean(watched.flexod_cpu for watched in beside),
        "rpcs_per_minute": sum(watched.flexods.count for watched in beside) / minutes,
        "rpcs_share_of_time": max(watched.flexods.seconds / watched.seconds for watched in beside),
        "commands_mean_s": _commands(beside),
        "slurmctld_rpc_ratio": whole.value,
        "slurmctld_rpc_ratio_95": [whole.low, whole.high],
        "slurmctld_rpc_ratio_to_satellites_only": own.value,
        "slurmctld_rpc_ratio_to_satellites_only_95": [own.low, own.high],
        "slurmctld_rpc_ratio_without": _value(ratio(alone[1:], alone[:1]) if alone[1:] else None),
        "slurmctld_rpc_us_without": [watched.users.mean_us for watched in alone],
        "slurmctld_rpc_us_with": [watched.users.mean_us for watched in beside],
        "slurmctld_rpc_us_satellites_only": [watched.users.mean_us for watched in seen.satellites_only],
        "users_rpcs": [watched.users.count for watched in (*alone, *beside, *seen.satellites_only)],
        "slurmctld_work_without": [_shares(watched) for watched in alone],
        "slurmctld_work_with": [_shares(watched) for watched in beside],
        "slurmctld_work_satellites_only": [_shares(watched) for watched in seen.satellites_only],
        "goals": GOALS,
        "machine": machine.facts(),
        "command": _command(),
    }


def _shares(watched: Watched) -> dict[str, list[float]]:
    """Work of slurmctld's main scheduler and backfill: mean seconds of a cycle, and part of all time."""
    return {
        name: [work.seconds / max(1, work.cycles), work.seconds / watched.seconds]
        for name, work in watched.work.items()
    }


def _value(found: Ratio | None) -> float | None:
    return found.value if found else None


def _commands(beside: Sequence[Watched]) -> dict[str, tuple[int, float]]:
    """flexod's commands: their number, and their mean duration."""
    names = {name for watched in beside for name, _, _ in watched.commands_s}
    found = {}
    for name in sorted(names):
        rows = [row for watched in beside for row in watched.commands_s if row[0] == name]
        count = sum(row[1] for row in rows)
        if count:
            found[name] = count, sum(row[2] for row in rows) / count
    return found


def _table(figures: dict[str, Any]) -> Iterator[str]:
    nodes, jobs, leaders = (figures[key] for key in ("nodes", "jobs", "leaders"))
    satellites = ", ".join(map(str, figures["satellites"]))
    limit = figures["max_satellites"] or "none"
    yield f"\n{nodes} nodes, {jobs} jobs, {leaders} elastic ones with leaders"
    left = ", ".join(map(str, figures["satellites_left"]))
    yield f"{satellites} satellites ran (max_satellites: {limit}); {left} after their time without flexod"
    for key in (
        "loop_p50_s",
        "loop_p99_s",
        "rss_mib",
        "flexod_cpu",
        "rpcs_share_of_time",
        "rpcs_per_minute",
        "slurmctld_rpc_ratio",
    ):
        goal = f"   at most {GOALS[key]:g} to reach" if key in GOALS else ""
        yield f"{key:24}{figures[key]:>12.3f}{goal}"
    low, high = figures["slurmctld_rpc_ratio_95"]
    again, commands = figures["slurmctld_rpc_ratio_without"], figures["commands_mean_s"]
    yield "loop: one turn, from looking at Slurm to telling leaders"
    for took, asking in zip(figures["loops_s"], figures["loops_asking_slurm_s"], strict=True):
        yield f"  {took:.2f} s; Slurm's commands {asking:.2f} s, two of them partly at the same time"
    yield "slurmctld_rpc_ratio: its mean time for an ordinary user's RPC with flexod, to that without;"
    yield f"  95 times of 100 between {low:.2f} and {high:.2f}"
    if again:
        yield f"  the same of the stretches without flexod, the later ones to the first: {again:.2f}"
    low, high = figures["slurmctld_rpc_ratio_to_satellites_only_95"]
    own = figures["slurmctld_rpc_ratio_to_satellites_only"]
    yield f"slurmctld_rpc_ratio_to_satellites_only: to that with satellites, but without flexod: {own:.2f}"
    yield f"  95 times of 100 between {low:.2f} and {high:.2f}"
    yield "slurmctld's own work under its locks, with flexod (with its satellites only; without both):"
    for name in ("main", "backfill"):
        cycle_s, part = _mean_of(figures["slurmctld_work_with"], name)
        cycle_s_left, part_left = _mean_of(figures["slurmctld_work_satellites_only"], name)
        cycle_s_without, part_without = _mean_of(figures["slurmctld_work_without"], name)
        yield (
            f"  {name}: {part:.0%} of the time ({part_left:.0%}; {part_without:.0%}), "
            f"{cycle_s:.2f} s a cycle ({cycle_s_left:.2f}; {cycle_s_without:.2f})"
        )
    for name, (count, mean_s) in commands.items():
        yield f"{count:5} times `{name}`, {mean_s:.2f} s on average"


def _mean_of(stretches: Sequence[dict[str, list[float]]], name: str) -> list[float]:
    return [statistics.fmean(column) for column in zip(*(each[name] for each in stretches), strict=True)]


def _command() -> str:
    words = sys.argv[1:]
    return f"make bench-scale ARGS='{' '.join(words)}'" if words else "make bench-scale"


if __name__ == "__main__":
    main()
