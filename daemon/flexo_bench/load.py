"""The cost of flexod: its CPU time and slurmctld's time for its reads, on a lab of its own (make bench-load).

The kernel accounts the CPU time of flexod and of the commands that it ran. slurmctld's time comes from its
own statistics by user (`sdiag`): flexod's account does nothing else on the lab.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_lab.bringup import bring_up
from flexo_lab.lab import Lab
from flexo_lab.spec import LabSpec, Profile

SETTLE_S = 5.0
_BY_USER = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)
_ELASTIC = """#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
exec flexo run python {script} --step-seconds 0.2 --epochs 100000
"""


def _elastic(script: Path) -> str:
    return _ELASTIC.format(script=shlex.quote(str(script)))


@dataclass(frozen=True, slots=True)
class Load:
    """One measurement. Shares are of one core's time and of slurmctld's wall time."""

    situation: str
    seconds: float
    flexod_cpu_share: float
    slurmctld_share: float
    slurmctld_rpcs_per_minute: float
    flexod_rss_mib: float


def main() -> None:
    """Measure at rest, with many pending jobs, and with an elastic job; print a table; write the JSON."""
    parser = argparse.ArgumentParser(prog="make bench-load", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long each situation is watched")
    parser.add_argument("--pending", type=int, default=1000, help="jobs in the queue of the second situation")
    parser.add_argument("--script", type=Path, default=Path("examples/digits/train.py"))
    parser.add_argument("--out", type=Path, default=Path("build/bench/load.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lab = bring_up(LabSpec(name=f"load{os.getpid()}", profile=Profile.PRODUCTION))
    try:
        loads = [_watch(lab, "at rest", options.seconds)]
        _submit_pending(lab, options.pending)
        loads.append(_watch(lab, f"{options.pending} jobs pending", options.seconds))
        lab.run(["scancel", "--state=PENDING", "--user=root"])
        lab.run(["sbatch", "--output=/dev/null"], stdin=_elastic(options.script.resolve()))
        loads.append(_watch(lab, "one elastic job", options.seconds))
    finally:
        lab.down()
    _tell(loads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([asdict(load) for load in loads], indent=2) + "\n")


def _watch(lab: Lab, situation: str, seconds: float) -> Load:
    print(f"watching flexod for {seconds:.0f} s: {situation}", flush=True)
    time.sleep(SETTLE_S)
    flexod = lab.flexod_processes()[0]
    before, started = flexod.cpu_times(), time.monotonic()
    count_before, total_before = _slurmctld_time(lab)
    time.sleep(seconds)
    after, elapsed = flexod.cpu_times(), time.monotonic() - started
    count, total = _slurmctld_time(lab)
    spent = sum(after[:4]) - sum(before[:4])  # user and system time, of flexod and of its ended children
    return Load(
        situation,
        round(elapsed, 1),
        round(spent / elapsed, 5),
        round((total - total_before) / 1e6 / elapsed, 5),
        round((count - count_before) * 60 / elapsed, 1),
        round(flexod.memory_info().rss / 2**20, 1),
    )


def _slurmctld_time(lab: Lab) -> tuple[int, int]:
    """RPCs of flexod's account so far and the microseconds that slurmctld spent on them."""
    text = lab.run(["sdiag"]).stdout
    for user, count, total in _BY_USER.findall(text[text.index("by user") :]):
        if user == lab.spec.flexod_account:
            return int(count), int(total)
    return 0, 0


def _submit_pending(lab: Lab, count: int) -> None:
    """Submit jobs that wait for a date. They cost only the readers of the queue."""
    script = f"for i in $(seq {count}); do sbatch -Q --begin=now+2days --wrap true >/dev/null; done"
    lab.run(["sh", "-c", script], timeout=600)


def _tell(loads: list[Load]) -> None:
    print(f"\n{'situation':24}{'flexod CPU':>12}{'slurmctld':>12}{'RPCs/min':>10}{'memory':>10}")
    for load in loads:
        print(
            f"{load.situation:24}{load.flexod_cpu_share:>12.2%}{load.slurmctld_share:>12.3%}"
            f"{load.slurmctld_rpcs_per_minute:>10.0f}{load.flexod_rss_mib:>6.0f} MiB"
        )
    print("CPU as a share of one core, slurmctld as a share of the time; repeat with: make bench-load")


if __name__ == "__main__":
    main()
