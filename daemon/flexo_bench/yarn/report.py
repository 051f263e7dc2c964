"""The figures of make bench-yarn, beside what they should be: as JSON, and as text for people."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flexo_bench.yarn.grants import Grants
from flexo_bench.yarn.polling import Polled, Stretch
from flexo_bench.yarn.process import Cost, Costs, Role
from flexo_bench.yarn.samples import Estimate, difference, estimate, percentile

GRANT_S, MORE_MIB, CPU_PART, POLL_S, RM_PART = 6.0, 40.0, 0.005, 0.3, 0.02
"""Upper bounds: 95 of 100 grants, memory and CPU of the job's process, 95 of 100 polls, the part of the
ResourceManager's CPU time."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that should be at most `most`."""

    name: str
    value: float
    most: float

    @property
    def verdict(self) -> str:
        """One word."""
        return "reached" if self.value <= self.most else "missed"


@dataclass(slots=True)
class Report:
    """All figures of a run so far."""

    command: str
    machine: dict[str, Any]
    grants: Grants | None = None
    costs: Costs | None = None
    polled: list[Polled] = field(default_factory=list)

    def goals(self) -> Iterator[Goal]:
        """What the parts that have run are judged by."""
        if self.grants:
            running = [each.running_s for each in self.grants.flexo]
            yield Goal("grant_p95_s", percentile(running, 95), GRANT_S)
        if self.costs:
            yarn, slurm = master(self.costs.yarn), master(self.costs.slurm)
            yield Goal("master_more_rss_mib", yarn.rss_mib - slurm.rss_mib, MORE_MIB)
            yield Goal("master_cpu", yarn.cpu, CPU_PART)
        for each in self.polled:
            where = f"{each.workload.nodes}_nodes_{scheduling(each)}"
            yield Goal(f"poll_p95_s_{where}", percentile([poll.seconds for poll in each.polls], 95), POLL_S)
            yield Goal(f"rm_part_{where}", rm_part(each.beside), RM_PART)

    def as_json(self) -> dict[str, Any]:
        """Goals first, then every sample."""
        return {
            "goals": {
                goal.name: {"value": goal.value, "most": goal.most, "verdict": goal.verdict}
                for goal in self.goals()
            },
            "command": self.command,
            "machine": self.machine,
            "grants": asdict(self.grants) if self.grants else None,
            "process": asdict(self.costs) if self.costs else None,
            "polling": [asdict(each) for each in self.polled],
        }

    def write(self, path: Path) -> None:
        """Write the JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def lines(self) -> Iterator[str]:
        """The text."""
        if self.grants:
            yield from _grant_lines(self.grants)
        if self.costs:
            yield from _cost_lines(self.costs)
        for each in self.polled:
            yield from _polled_lines(each)
        yield ""
        for goal in self.goals():
            yield f"{goal.name:44}{goal.value:>9.4f}   at most {goal.most:g}: {goal.verdict}"


def master(costs: Sequence[Cost]) -> Cost:
    """The job's own process."""
    return next(each for each in costs if each.role is Role.MASTER)


def scheduling(polled: Polled) -> str:
    """How the ResourceManager schedules, in a word."""
    return "asynchronous" if polled.asynchronous else "heartbeats"


def rm_part(beside: Sequence[Stretch]) -> float:
    """The part of the ResourceManager's CPU time that its threads for clients use while flexod polls."""
    return sum(each.rm.clients for each in beside) / sum(each.rm.process for each in beside)


def _grant_lines(grants: Grants) -> Iterator[str]:
    yield ""
    yield f"from an idle GPU to a running container, {len(grants.flexo)} times each"
    running = [each.running_s for each in grants.flexo]
    training = [each.training_s for each in grants.flexo if each.training_s is not None]
    yield _times("  an elastic job's satellite", running)
    yield _times("    YARN has allocated it", [each.allocated_s for each in grants.flexo])
    yield _times("    a step is trained with it", training)
    yield _times("  an application that waits for it", [each.running_s for each in grants.yarn])


def _times(what: str, values: Sequence[float]) -> str:
    half, late = estimate(values, statistics.median), estimate(values, lambda some: percentile(some, 95))
    return f"{what:36}median {_seconds(half)}, p95 {_seconds(late)}"


def _seconds(of: Estimate) -> str:
    return f"{of.value:.2f} s ({of.low:.2f} to {of.high:.2f})"


def _cost_lines(costs: Costs) -> Iterator[str]:
    yield ""
    yield f"an elastic job of {costs.workers} workers, half of them in satellites, for {costs.seconds:.0f} s"
    yield f"{'':12}{'processes':>11}{'RSS MiB':>10}{'PSS MiB':>10}{'core':>9}"
    for name, found in (("YARN", costs.yarn), ("Slurm", costs.slurm)):
        for each in found:
            yield (
                f"  {name:6}{each.role.value:12}{each.processes:>3}"
                f"{each.rss_mib:>10.1f}{each.pss_mib:>10.1f}{each.cpu:>9.2%}"
            )
    yield "  master: the ApplicationMaster on YARN, `flexo run` on Slurm"


def _polled_lines(polled: Polled) -> Iterator[str]:
    work = polled.workload
    polls = [each.seconds for each in polled.polls]
    yield ""
    yield (
        f"{work.nodes} nodes that beat every {work.node_beat_s:g} s, {polled.containers} containers of "
        f"{work.ordinary} applications and {work.elastic} elastic jobs, {work.waiting} applications that "
        f"wait; scheduling: {scheduling(polled)}"
    )
    longest = f"longest {max(polls):.2f} s, of {len(polls)}; load average {polled.load:.1f}"
    yield f"{_times('  one poll', polls)}, {longest}"
    for name in dict.fromkeys(name for each in polled.polls for name in each.calls):
        took = [each.calls[name][1] for each in polled.polls if name in each.calls]
        yield f"    {name:34}median {statistics.median(took):.3f} s"
    own = statistics.median(each.cpu_s for each in polled.polls)
    yield f"    {'CPU time of this side':34}median {own:.3f} s"
    yield from _rm_lines(polled)
    stretches = [*polled.without, *polled.beside]
    late = max(each.node_late_s for each in stretches)
    beats = sum(each.node_beats for each in stretches) / sum(each.rm.seconds for each in stretches)
    yield f"  nodes: {beats:.0f} beats a second, none later than {late:.2f} s"


def _rm_lines(polled: Polled) -> Iterator[str]:
    alone = [each.rm.process / each.rm.seconds for each in polled.without]
    with_it = [each.rm.process / each.rm.seconds for each in polled.beside]
    beside = [each.rm for each in polled.beside]
    seconds, polls = sum(each.seconds for each in beside), sum(len(each.polls_s) for each in polled.beside)
    rest = sum(each.process - each.asynchronous for each in beside)
    more = difference(with_it, alone)
    yield (
        f"  the ResourceManager uses {statistics.fmean(alone):.2f} of a core without flexod, "
        f"{statistics.fmean(with_it):.2f} with it: {more.value:+.1%} ({more.low:+.1%} to {more.high:+.1%})"
    )
    yield (
        f"  its threads for clients: {rm_part(polled.beside):.2%} of its CPU time with flexod, which polled "
        f"every {seconds / max(1, polls):.1f} s; {rm_part(polled.without):.2%} without"
    )
    idle = sum(each.rm.clients for each in polled.without) / sum(each.rm.seconds for each in polled.without)
    own = sum(each.clients for each in beside) - idle * seconds
    yield f"    one poll takes {own / max(1, polls) * 1000:.0f} ms of them"
    if polled.asynchronous:
        part = sum(each.clients for each in beside) / rest
        yield f"    of the CPU time without its scheduling thread: {part:.2%}"
