"""make test-soak: an hour of jobs, failures and restarts on a real lab; flexod must not grow with it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos.system.link import Link
from chaos.system.plan import Target
from chaos.system.stage import cluster

from flexo import config
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo_lab import Lab, LabError, why_unavailable
from flexo_lab.ports import free_ports
from soak import picture, report
from soak.meter import Meter, Sample, size_of
from soak.play import RESTARTED, Played, play
from soak.rounds import round_of

BUILD = Path(__file__).resolve().parents[2] / "build" / "soak"
MINUTES = 60.0
WARM_UP_MINUTES = 10.0
"""A third of the time, if that is less. flexod restarts in its first half only, and settles in the second."""
QUIET_WITHIN_S = 120.0
SETTLE_S = 5.0
"""From the last job's end to a sample."""
WATCH_S = 60.0
"""Twelve stretches (soak.meter), of which the median counts."""
FORGOTTEN_S = 240
"""slurmctld forgets ended jobs, as it does by default (300 s): else its list would grow for an hour, and what
it costs to read."""
EVENT_STORE_MIB = 1
"""The least that there can be."""
FILLED = 0.9
"""So much of it is full in the beginning."""
_SETTINGS = {
    "[event_store]\n": f"[event_store]\nmax_mib = {EVENT_STORE_MIB}\n",
    "max_interval_s = 2.0\n": "min_interval_s = 1.0\nmax_interval_s = 1.0\n",
}
"""What differs from the lab's flexo.toml; its loop turns twice as often, for more turns in a quiet point."""
_METRICS_PORT = re.compile(r'^listen = "127\.0\.0\.1:(\d+)"$', re.MULTILINE)


class Ended(Exception):
    """The soak cannot go on; the message is a violation."""


@dataclass
class _Course:
    """What has happened so far."""

    seed: int
    minutes: float
    out: Path
    began: float = field(default_factory=time.monotonic)
    rounds: int = 0
    jobs: int = 0
    satellites: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    warm_up: list[Sample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    budget: int = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def warm_up_s(self) -> float:
        return 60 * min(WARM_UP_MINUTES, self.minutes / 3)

    def run(self, lab: Lab, links: Mapping[Target, Link]) -> None:
        """Round after round, with a quiet point after each."""
        port = _METRICS_PORT.search(lab.layout.flexo_toml.read_text())
        assert port is not None
        store = config.load(lab.layout.flexo_toml).event_store.path
        flexod: psutil.Process | None = None
        while self.elapsed_s < 60 * self.minutes:
            self.rounds += 1
            settled = self.elapsed_s >= self.warm_up_s
            this = round_of(self.seed, self.rounds, flexod_too=self.elapsed_s < self.warm_up_s / 2)
            played = play(this, lab, links, self.out / f"round{self.rounds}")
            self._count(played)
            before, flexod = flexod, self._flexod(lab)
            if settled and before != flexod:
                raise Ended(f"round {self.rounds}: flexod is another process, and nobody restarted it")
            sample = self._sample(lab, Meter(flexod, int(port[1]), store))
            if sample is not None:
                (self.samples if settled else self.warm_up).append(sample)
            self._tell(played, sample, settled)

    def _count(self, played: Played) -> None:
        self.jobs += played.jobs
        self.satellites += played.satellites
        for strike in played.strikes:
            deed = "restart" if strike.what.endswith(RESTARTED) else strike.deed
            self.failures[f"{deed} {strike.target}"] += 1
        self.violations += [
            f"round {self.rounds}: {each.invariant}: {each.what}" for each in played.violations
        ]

    def _flexod(self, lab: Lab) -> psutil.Process:
        found = lab.flexod_processes()
        if len(found) != 1:
            raise Ended(f"round {self.rounds}: {len(found)} processes of flexod run, and not one")
        return found[0]

    def _sample(self, lab: Lab, meter: Meter) -> Sample | None:
        """When no elastic job runs; None if that does not come to be."""
        deadline = time.monotonic() + QUIET_WITHIN_S
        while lab.run(["squeue", "--noheader"], check=False).stdout.strip() or meter.elastic_jobs():
            if time.monotonic() > deadline:
                self.violations.append(
                    f"round {self.rounds}: not quiet within {QUIET_WITHIN_S:.0f} s of its end"
                )
                return None
            time.sleep(0.5)
        time.sleep(SETTLE_S)
        sample = meter.sample(WATCH_S)
        if sample.event_store_bytes > self.budget:
            took = f"{sample.event_store_bytes} bytes, of {self.budget}"
            self.violations.append(f"round {self.rounds}: the event store stays in its budget: {took}")
        return sample

    def _tell(self, played: Played, sample: Sample | None, settled: bool) -> None:
        left = max(0.0, 60 * self.minutes - self.elapsed_s) / 60
        round_ = f"round {self.rounds}{'' if settled else ' (warm-up)'}"
        seen = "no sample"
        if sample is not None:
            seen = (
                f"{sample.memory_mib:.2f} MiB, {sample.descriptors} descriptors, {sample.threads} threads, "
                f"{1000 * sample.cycle_cpu_s:.1f} ms a cycle ({sample.cycle_cost:.2f} of the fixed work)"
            )
        print(
            f"{self.elapsed_s:6.0f} s  {round_}: {played.jobs} jobs, {played.satellites} satellites, "
            f"{len(played.strikes)} failures in {played.seconds:.0f} s; {seen}; "
            f"{'VIOLATED' if played.violations else 'well'}; {left:.0f} min left",
            flush=True,
        )
        for each in played.violations:
            print(f"          {each.invariant}: {each.what}", flush=True)

    def result(self, *, interrupted: bool) -> report.Soak:
        """As of now."""
        return report.Soak(
            self.seed, self.elapsed_s / 60, self.warm_up_s / 60, self.rounds, self.jobs, self.satellites,
            dict(self.failures), tuple(self.violations), tuple(self.warm_up), tuple(self.samples),
            self.budget, interrupted,
        )  # fmt: skip


def main() -> int:
    """0 if nothing grows and nothing is violated, 1 if not, 2 without a lab, 130 if interrupted."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # a shell's background ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    options = _parse()
    if (reason := why_unavailable()) is not None:
        print(f"A soak cannot run here: {reason}.", file=sys.stderr)
        return 2
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    course = _Course(options.seed, options.minutes, options.out)
    interrupted = False
    try:
        with _lab() as (lab, links):
            course.budget = config.load(lab.layout.flexo_toml).event_store.max_mib << 20
            course.began = time.monotonic()
            course.run(lab, links)
    except (Ended, LabError) as error:
        course.violations.append(str(error))
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted; nothing of the lab is left", file=sys.stderr)
    soak = course.result(interrupted=interrupted)
    report.write(soak, options.out / "report.json")
    picture.draw(soak, options.out / "soak.png")
    print(
        "\n".join(
            ["", *report.table(soak), f"report: {options.out}/report.json, picture: soak.png beside it"]
        )
    )
    return 130 if interrupted else 0 if soak.well else 1


@contextlib.contextmanager
def _lab() -> Iterator[tuple[Lab, Mapping[Target, Link]]]:
    """A cluster that lends servers, with flexod and its metrics."""
    with cluster(f"soak{os.getpid()}") as (lab, links):
        for conf in (lab.layout.slurm_conf, lab.directory / "slurm-flexod.conf"):
            text = re.sub(
                r"^MinJobAge=\d+$", f"MinJobAge={FORGOTTEN_S}", conf.read_text(), flags=re.MULTILINE
            )
            conf.write_text(text)
        lab.run(["scontrol", "reconfigure"])
        [port] = free_ports(1, lab.ports.all())
        toml = lab.layout.flexo_toml.read_text()
        for old, new in _SETTINGS.items():
            assert old in toml
            toml = toml.replace(old, new)
        lab.layout.flexo_toml.write_text(f'{toml}\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
        _fill_event_store(lab)
        lab.start_flexod()
        yield lab, links


def _fill_event_store(lab: Lab) -> None:
    """With entries of an earlier time, so that old ones have to go from the beginning."""
    kept = config.load(lab.layout.flexo_toml).event_store
    event_store = EventStore(kept.path, kept.keep_days, max_mib=kept.max_mib)
    at = time.time() - 3600
    with contextlib.closing(event_store):
        while size_of(kept.path) < FILLED * (EVENT_STORE_MIB << 20):
            event_store.record(
                at, tuple(Event(at, "trouble", None, "of an earlier time") for _ in range(100))
            )
    for path in kept.path.parent.iterdir():
        shutil.chown(path, lab.spec.flexod_account)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-soak",
        description=__doc__,
        epilog="Options go into ARGS: make test-soak ARGS='--minutes 15'. docs/evidence/soak.md has more.",
    )
    parser.add_argument("--minutes", type=_minutes, default=MINUTES, help="how long (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of what happens (%(default)s)")
    parser.add_argument("--out", type=Path, default=BUILD, help="report, picture, logs of bad rounds")
    return parser.parse_args()


def _minutes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 1 <= (minutes := float(text)) <= 24 * 60:
            return minutes
    raise argparse.ArgumentTypeError(f"'{text}': 1 to 1440 are allowed")


if __name__ == "__main__":
    sys.exit(main())
