"""make bench-price: what a cheap resize is worth. Every policy at several prices, beside Pollux and Sia."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flexo.policies import registry
from flexo_bench.price import cases, picture, report
from flexo_bench.price.cases import Case, Folders
from flexo_bench.price.replay import Replayed, replay
from flexo_bench.price.report import Found, SiaSet
from flexo_bench.price.runs import Outcome, Runs, code_now
from flexo_simulation.engine import SimulationStuck, simulate
from flexo_simulation.formats import sia, sia_log
from flexo_simulation.formats.errors import BadTrace

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "build" / "bench"
RESULTS = BENCH / "price.json"
PICTURE = BENCH / "price.png"
RUNS = BENCH / "price-runs.jsonl"
TRACES = ROOT.parent / "shared" / "traces"
QUICK_PRICES = ("0.03", "30")


def main() -> None:
    """Simulate what is not known yet; write every outcome when it is there."""
    options = _parse(sys.argv[1:])
    folders = Folders(TRACES, options.sia)
    if not TRACES.exists():
        _miss(f"Pollux' workloads are left out: they would lie at {TRACES}")
    if options.sia is None:
        _miss("Sia's workloads are left out: make bench-price SIA=DIR reads them from its artifact")
    try:
        _bench(options, folders)
    except (BadTrace, registry.BadSetting, SimulationStuck) as error:
        sys.exit(str(error))


def _bench(options: argparse.Namespace, folders: Folders) -> None:
    code = code_now()
    if options.fresh:
        RUNS.unlink(missing_ok=True)
    runs = Runs(RUNS, code)
    logs = _logs(folders)
    replays = _replays(folders, {each: path for each, path in logs.items() if each.trace in options.traces})
    means = {each: sia_log.read_mean(path) for each, path in logs.items()}
    if not options.replay_only:
        wanted = [case for case in _wanted(options, folders) if case not in runs.known]
        began = time.monotonic()
        for number, (case, outcome) in enumerate(_outcomes(wanted, folders, options.processes), start=1):
            runs.add(case, outcome)
            left = (
                f", {outcome.jobs - outcome.finished} jobs never end"
                if outcome.finished < outcome.jobs
                else ""
            )
            _say(began, f"{number} of {len(wanted)}: {case}: {outcome.jct_s:.0f} s{left}")
            _write(_told(runs, options, folders), means, replays, code)
    found = _told(runs, options, folders)
    _write(found, means, replays, code)
    report.show(found, means, replays, Console(width=max(120, Console().width)))
    if found:
        picture.draw(found, means, PICTURE)
    print(f"written: {RESULTS}, and {PICTURE.name} beside it")


def _wanted(options: argparse.Namespace, folders: Folders) -> Iterator[Case]:
    for case in cases.chosen(folders, options.prices, quick=options.quick, tuning=options.tuning):
        if case.policy in options.policies and case.trace in options.traces:
            yield replace(case, settings=tuple(options.set))


def _told(runs: Runs, options: argparse.Namespace, folders: Folders) -> dict[Case, Outcome]:
    """The outcomes that are reported: those for tuning are never mixed with the others."""
    listed = set(cases.chosen(folders, (*cases.PRICES, cases.OWN), quick=False, tuning=options.tuning))
    settings = ((), tuple(options.set))
    return {
        case: outcome
        for case, outcome in runs.known.items()
        if replace(case, settings=()) in listed and case.settings in settings
    }


def _outcomes(wanted: Sequence[Case], folders: Folders, processes: int) -> Iterator[tuple[Case, Outcome]]:
    """The outcomes, as they come."""
    if processes == 1:
        for case in wanted:
            yield case, _outcome(case, folders)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        futures = {pool.submit(_outcome, case, folders): case for case in wanted}
        for done in as_completed(futures):
            yield futures[done], done.result()


def _outcome(case: Case, folders: Folders) -> Outcome:
    trial = cases.trial(case, folders)
    try:
        return Outcome.of(simulate(trial.workload, trial.policy, trial.scenario))
    except SimulationStuck as error:
        raise SimulationStuck(f"{case}: {error}") from error


def _logs(folders: Folders) -> dict[SiaSet, Path]:
    """The logs of Sia's simulator: DIR/logs/CLUSTER/TRACE/workload-NUMBER.log."""
    if folders.sia is None:
        return {}
    found = {}
    for path in sorted((folders.sia / "logs").glob("*/*/workload-*.log")):
        cluster, trace, number = path.parts[-3], path.parts[-2], path.stem.removeprefix("workload-")
        if cluster in sia.CLUSTERS and trace in sia.TRACES and number.isdecimal():
            found[SiaSet(cluster, trace, int(number))] = path
    if not found:
        _miss(f"no log of Sia's simulator is in {folders.sia / 'logs'}: seeds_below_sia stays null")
    return found


def _replays(folders: Folders, logs: dict[SiaSet, Path]) -> dict[SiaSet, Replayed]:
    if folders.sia is None:
        return {}
    return {
        each: replay(folders.sia, each.trace, each.number, sia.CLUSTERS[each.cluster], path)
        for each, path in logs.items()
    }


def _write(found: Found, means: dict[SiaSet, float], replays: dict[SiaSet, Replayed], code: str) -> None:
    """Write all figures, and keep the replays of earlier calls with the same code."""
    BENCH.mkdir(parents=True, exist_ok=True)
    written = report.as_json(found, means, replays, code)
    earlier = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if earlier.get("code") == code:
        written["replay"] = earlier["replay"] | written["replay"]
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")


def _setting(text: str) -> str:
    """A setting as KEY=VALUE, with a number or a JSON value."""
    key, _, value = text.partition("=")
    try:
        json.loads(value)
    except json.JSONDecodeError:
        key = ""
    if not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no setting: KEY=VALUE, such as alpha=0.4, is allowed")
    return text


def _say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)


def _miss(text: str) -> None:
    print(text, file=sys.stderr)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    names = tuple(dict.fromkeys(name for name, _ in cases.policies()))
    parser = argparse.ArgumentParser(prog="make bench-price ARGS=", description=__doc__)
    parser.add_argument("--sia", type=Path, help="the folder of Sia's artifact (make's SIA=DIR)")
    parser.add_argument(
        "--replay-only", action="store_true", help="replay Sia's logs, and simulate no policy"
    )
    parser.add_argument("--policies", nargs="+", choices=names, default=names, metavar="POLICY")
    parser.add_argument("--traces", nargs="+", choices=(cases.POLLUX, *sia.TRACES), metavar="TRACE")
    parser.add_argument("--prices", nargs="+", choices=(*cases.PRICES, cases.OWN), metavar="PRICE")
    parser.add_argument(
        "--set", nargs="+", default=(), type=_setting, metavar="KEY=VALUE", help="settings of the policies"
    )
    parser.add_argument(
        "--tuning", action="store_true", help="saturn and newtrace 1 to 5, instead of 6 to 10"
    )
    parser.add_argument("--quick", action="store_true", help="one workload of each source, two prices")
    parser.add_argument("--fresh", action="store_true", help="forget the simulations of earlier calls")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time")
    options = parser.parse_args(arguments)
    options.traces = options.traces or (cases.POLLUX, *sia.TRACES)
    options.prices = options.prices or (QUICK_PRICES if options.quick else (*cases.PRICES, cases.OWN))
    return options


if __name__ == "__main__":
    main()
