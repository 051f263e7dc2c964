"""The findings of a dump, in plain sentences and tables: for the terminal and for the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from flexo.words import counted, duration
from flexo_simulation.formats.accounting import Software
from flexo_simulation.whatif import (
    CLOSE_S,
    ENOUGH_JOBS,
    Calibration,
    Case,
    Findings,
    Row,
    WaitStatistics,
)

COLUMNS: Final = (
    "policy",
    "elastic jobs",
    "mean completion, h",
    "jobs waited, h in all",
    "95% waited at most, h",
    "GPU h idle while jobs waited",
    "GPUs in use",
)
EXPLAINED: Final = (
    "completion: mean hours from submission to completion; waited: by all jobs together; 95%: at most so "
    "long waited all but a twentieth; idle, wanted: GPU hours, idle although waiting jobs asked for them"
)
_DOES: Final = {
    "lyra": "short jobs start first, and then the rest goes to jobs that save most time by more workers",
    "elastic-tiresias": "jobs that have had least GPU time so far go first",
    "greedy": "all elastic jobs share evenly",
    "goodput": "GPUs go to jobs that they bring to their end soonest, at the best batch",
    "throughput": "as many jobs as possible run, at the greatest sum of speeds",
}
_NOTHING_H: Final = 1 / 60
"""A mean wait up to this counts as no wait."""
_LEAST_H: Final = 0.001
"""Hours below this count as nothing."""
_NEAR: Final = 0.25
"""The largest difference of two mean waits, as a part of the longer one, that the text calls near."""


def rows(findings: Findings) -> Iterator[tuple[str, ...]]:
    """The rows under COLUMNS, the baseline first; changes are against it."""
    base = findings.baseline
    yield (
        findings.software.baseline_words,
        "none",
        hours(base.mean_jct_h),
        hours(base.waited_h),
        hours(base.p95_wait_h),
        *_use(base, ""),
    )
    for row in findings.rows():
        case = row.case
        yield (
            f"{case.policy} (oracle)" if case.oracle else case.policy,
            elastic(row),
            f"{hours(case.mean_jct_h)} {change(case.mean_jct_h, base.mean_jct_h)}".rstrip(),
            f"{hours(case.waited_h)} {change(case.waited_h, base.waited_h)}".rstrip(),
            f"{hours(case.p95_wait_h)} {change(case.p95_wait_h, base.p95_wait_h)}".rstrip(),
            *_use(case, change(case.idle_wanted_gpu_h, base.idle_wanted_gpu_h)),
        )


def elastic(row: Row) -> str:
    """The elastic jobs of a row: ``none``, ``20% (9 jobs)``, ``5 to 20% (the same job)``."""
    first, jobs = row.case.elastic_share, row.case.elastic_jobs
    if not row.last_share:
        return "none"
    if row.last_share == first:
        return f"{100 * first:.3g}% ({counted(jobs, 'job') if jobs else 'no job'})"
    drawn = "no job" if not jobs else "the same job" if jobs == 1 else f"the same {jobs:,} jobs"
    return f"{100 * first:.3g} to {100 * row.last_share:.3g}% ({drawn})"


def _use(case: Case, changed: str) -> tuple[str, str]:
    return f"{hours(case.idle_wanted_gpu_h)} {changed}".rstrip(), f"{case.utilization:.1%}"


def _window(length_h: float) -> str:
    return f"{length_h / 24:.1f} days" if length_h >= 48 else duration(length_h * 3600)


def in_short(findings: Findings) -> Iterator[str]:
    """The answer in short: whether the dump is too small for one, then a sentence for each share of elastic
    jobs under the first policy."""
    base = findings.baseline
    if (known := findings.calibration) is not None and known.jobs < ENOUGH_JOBS:
        yield (
            f"The dump is too small: it has {counted(known.jobs, 'job')} to compare. A single job can "
            f"decide the figures below. Take a dump of {ENOUGH_JOBS} GPU jobs or more, such as a whole month."
        )
    they = "it waits" if base.jobs == 1 else "they wait"
    yield (
        f"In {_window(findings.window_h)} {counted(base.jobs, 'GPU job')} came to "
        f"{counted(findings.size.gpus, 'GPU')}. Simulated as "
        f"{findings.software.name} schedules, {they} {hours(base.waited_h)} h in all, and "
        f"{hours(base.idle_wanted_gpu_h)} GPU hours are idle although waiting jobs ask for them."
    )
    first = findings.cases[0].policy if findings.cases else ""
    of_first = [row for row in findings.rows() if row.case.policy == first]
    alone = next((row.case for row in of_first if not row.case.elastic_jobs), None)
    for row in of_first:
        yield from _of_share(row, base, alone)


def _of_share(row: Row, base: Case, alone: Case | None) -> Iterator[str]:
    """What this share of elastic jobs would bring; `alone`: the same policy without elastic jobs."""
    case = row.case
    waits = f"all jobs together wait {compared(case.waited_h, base.waited_h, 'h')}"
    ends = f"are completed after {hours(case.mean_jct_h)} h on average instead of {hours(base.mean_jct_h)} h"
    if case.elastic_jobs:
        beside = compared(case.waited_h, alone.waited_h, "h") if alone else ""
        beyond = f" Beside its order alone, that is {beside}." if beside else ""
        yield f"Under {case.policy} with {elastic(row)} elastic, {waits}, and {ends}.{beyond}"
        return
    if row.last_share:
        shares = elastic(row).partition(" (")[0]
        yield f"No job is elastic at {shares}: the policy's order of jobs acts alone."
    yield f"Under {case.policy} with none elastic, {waits}, and {ends}. That is its order of jobs alone."


def policies(findings: Findings) -> Iterator[str]:
    """What each policy of the findings does, as far as it has words of its own here."""
    for name in dict.fromkeys(case.policy for case in findings.cases):
        if name in _DOES:
            yield f"{name}: {_DOES[name]}."


def days(begin: float, end: float) -> str:
    """The days of a dump's jobs, from `begin` to `end` (s since the epoch)."""
    first, last = (datetime.fromtimestamp(at, UTC).strftime("%d %b %Y") for at in (begin, end))
    return f"the dump has jobs of {first} to {last} (UTC)"


def trust(calibration: Calibration | None, software: Software) -> Iterator[str]:
    """Sentences on how far the simulation of what the cluster does is from what it did."""
    if calibration is None:
        yield "No job can be compared with what really happened: the dump is too short."
        return
    real, simulated = calibration.real, calibration.simulated
    yield (
        f"Really, {counted(calibration.jobs, 'job')} waited {_waits(real)}. "
        f"Simulated as {software.name} schedules, without elasticity, "
        f"{'it waits' if calibration.jobs == 1 else 'they wait'} {_waits(simulated)}."
    )
    yield (
        f"Job by job, the wait of {calibration.close_share:.0%} is within {CLOSE_S / 60:.0f} minutes of the "
        f"real one; the median difference is {hours(calibration.typical_difference_h)} h. GPUs in use: "
        f"really {calibration.real_utilization:.1%}, simulated {calibration.simulated_utilization:.1%}."
    )
    yield _verdict(real.mean_h, simulated.mean_h, software)


def _waits(waits: WaitStatistics) -> str:
    mean, median, p95 = hours(waits.mean_h), hours(waits.median_h), hours(waits.p95_h)
    return f"{mean} h on average (median {median} h, 95th percentile {p95} h)"


def _verdict(real_h: float, simulated_h: float, software: Software) -> str:
    longer = max(real_h, simulated_h)
    if longer < _NOTHING_H:
        return "Nobody had to wait, really or simulated: elastic jobs would have started no sooner."
    apart = abs(simulated_h - real_h) / longer
    told = f"Of the two mean waits, the {'real' if real_h > simulated_h else 'simulated'} one is the longer: "
    told += f"the other is {apart:.0%} shorter"
    if apart <= _NEAR:
        return f"{told}. That is near enough to take the differences below as estimates."
    return (
        f"{told}. That is far: take the differences below as a direction, not as a size. The simulation "
        f"knows nothing of {software.unknown}."
    )


def hours(value: float) -> str:
    """Hours as text, with as many digits as are significant; a dash if there is nothing to count."""
    if math.isnan(value):
        return "-"
    if abs(value) < _LEAST_H:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def change(now: float, before: float) -> str:
    """A change as text, such as ``(-42%)``; "" if there is nothing to compare with."""
    if not before or math.isnan(now) or math.isnan(before):
        return ""
    return f"({(now - before) / before:+.0%})"


def compared(now: float, before: float, unit: str) -> str:
    """A difference as text, such as ``"120 h less (-42%)"``."""
    if abs(now - before) < _LEAST_H:
        return "as long"
    way = "less" if now < before else "more"
    return f"{hours(abs(now - before))} {unit} {way} {change(now, before)}".rstrip()
