"""make bench-scheduler: what deciding and simulating cost. Nothing here can fail; goals stand beside."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from flexo_bench.scheduler import decision, picture, rival, traces

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "bench"
RESULTS = BUILD / "scheduler.json"
TRACES = ROOT.parent / "shared" / "traces"
PARTS = ("decision", "pollux", "philly")
ELASTIC_SHARE = 0.2


def main() -> None:
    """Measure the requested parts, print the results, write JSON and a picture."""
    options = _parse(sys.argv[1:])
    BUILD.mkdir(parents=True, exist_ok=True)
    for part in options.parts:
        if part != "decision" and not TRACES.exists():
            print(f"{part} is left out: it needs the traces, which would lie at {TRACES}", file=sys.stderr)
            continue
        _write(part, {"decision": _decision, "pollux": _pollux, "philly": _philly}[part](options))
    print(f"written: {RESULTS}")


def _write(part: str, found: object) -> None:
    """Write the part's results, and keep other parts' results of earlier runs."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {part: found}, indent=1) + "\n")


def _decision(options: argparse.Namespace) -> object:
    full = decision.measure(decision.FULL)
    print(
        f"one lyra decision, 10,000 jobs (2,000 elastic) on 10,000 nodes of 8: {full.median_s:.2f} CPU s"
        f" ({full.least_s:.2f} to {full.most_s:.2f}); goal 1 s"
    )
    typed = decision.measure_typed()
    print(
        f"one goodput decision, {typed.size.jobs:,} elastic jobs on 10,000 GPUs of four types:"
        f" {typed.median_s:.2f} CPU s ({typed.least_s:.2f} to {typed.most_s:.2f}); goal 1 s"
    )
    sweeps = {name: [decision.measure(size) for size in sizes] for name, sizes in decision.SWEEPS.items()}
    for name, timed in sweeps.items():
        print(f"  by {name}: " + ", ".join(f"{each.median_s:.2f}" for each in timed) + " s")
    picture.draw(sweeps, BUILD / "scheduler.png")
    print(f"  drawn: {BUILD / 'scheduler.png'}")
    return {
        "full": asdict(full),
        "typed": asdict(typed),
        **{name: [asdict(each) for each in timed] for name, timed in sweeps.items()},
    }


def _pollux(options: argparse.Namespace) -> object:
    found: dict[str, object] = {}
    for policy, theirs in (("tiresias-pollux", "tiresias"), ("goodput", "pollux")):
        cost = traces.pollux_under(policy, TRACES)
        _say(cost, "")
        found[policy] = asdict(cost)
        if options.artifact is not None and (theirs == "tiresias" or options.slow):
            found[f"{policy}.artifact_cpu_s"] = _rival(options, theirs, cost)
    return found


def _rival(options: argparse.Namespace, policy: str, ours: traces.Cost) -> float | None:
    workload = TRACES / "pollux" / "workloads" / "workload-6.csv"
    try:
        took_s = rival.cpu_s(options.artifact, options.artifact_python, policy, workload)
    except rival.NoArtifact as error:
        print(f"  Pollux' own simulator: {error}", file=sys.stderr)
        return None
    ratio, with_start = took_s / ours.cpu_s, took_s / (ours.cpu_s + ours.start_cpu_s)
    print(
        f"  Pollux' own simulator under {policy}: {took_s:.1f} CPU s, {ratio:.0f} times ours; goal 50"
        f" ({with_start:.0f} times with the {ours.start_cpu_s:.1f} CPU s that ours takes to start; its own"
        " start is in its figure)"
    )
    return took_s


def _philly(options: argparse.Namespace) -> object:
    backfill = traces.philly_under("backfill", TRACES, 0.0, options.jobs)
    _say(backfill, "goal 60 s on one core, 2 GiB")
    lyra = traces.philly_under("lyra", TRACES, ELASTIC_SHARE, options.jobs)
    _say(lyra, "goal 600 s on one core, 2 GiB")
    return [asdict(backfill), asdict(lyra)]


def _say(cost: traces.Cost, goal: str) -> None:
    print(
        f"{cost.label}: {cost.jobs:,} jobs, {cost.events:,} events: {cost.cpu_s:.1f} CPU s,"
        f" {cost.wall_s:.1f} s wall, {cost.peak_mib:.0f} MiB; mean JCT {cost.avg_jct_s:,.1f} s"
        + (f"; {goal}" if goal else ""),
        flush=True,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-scheduler ARGS=", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--jobs", type=int, help="only the first N of the Philly trace (default: all)")
    parser.add_argument(
        "--artifact", type=Path, help="a checkout of petuum/adaptdl, branch osdi21-artifact, to run beside"
    )
    parser.add_argument("--artifact-python", default=sys.executable, help="a Python that has what it imports")
    parser.add_argument("--slow", action="store_true", help="also its Pollux policy: about half an hour")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
