"""The findings of a dump, in plain sentences and tables: for the terminal and for the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    "jobs waited, h in all",
    "mean completion, h",
    "95% waited at most, h",
    "GPU h idle while jobs waited",
    "GPUs in use",
)
EXPLAINED: Final = (
    "waited: hours, by all jobs together; completion: mean hours from submission to completion; 95%: at "
    "most so long waited all but a twentieth; idle, wanted: GPU hours, idle although waiting jobs asked for "
    "them"
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
_LEAD_SHARE: Final = 0.2
"""The text leads with the share nearest to this one."""
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
        hours(base.waited_h),
        hours(base.mean_jct_h),
        hours(base.p95_wait_h),
        *_use(base, ""),
    )
    for row in findings.rows():
        case = row.case
        yield (
            f"{case.policy} (oracle)" if case.oracle else case.policy,
            elastic(row),
            f"{hours(case.waited_h)} {change(case.waited_h, base.waited_h)}".rstrip(),
            f"{hours(case.mean_jct_h)} {change(case.mean_jct_h, base.mean_jct_h)}".rstrip(),
            f"{hours(case.p95_wait_h)} {change(case.p95_wait_h, base.p95_wait_h)}".rstrip(),
            *_use(case, change(case.idle_wanted_gpu_h, base.idle_wanted_gpu_h)),
        )


def elastic(row: Row) -> str:
    """The elastic jobs of a row: ``none``, ``20% (9 jobs)``, ``5 to 20% (the same job)``.

    They are those of the whole dump. If some are not among the counted ones, it says how many are:
    ``20% (3 jobs, 1 counted)``.
    """
    first, jobs = row.case.elastic_share, row.case.elastic_in_all
    counts = f", {row.case.elastic_jobs:,} counted" if row.case.elastic_jobs < jobs else ""
    if not row.last_share:
        return "none"
    if row.last_share == first:
        return f"{100 * first:.3g}% ({counted(jobs, 'job') if jobs else 'no job'}{counts})"
    drawn = "no job" if not jobs else "the same job" if jobs == 1 else f"the same {jobs:,} jobs"
    return f"{100 * first:.3g} to {100 * row.last_share:.3g}% ({drawn}{counts})"


def _use(case: Case, changed: str) -> tuple[str, str]:
    return f"{hours(case.idle_wanted_gpu_h)} {changed}".rstrip(), f"{case.utilization:.1%}"


def _window(length_h: float) -> str:
    return f"{length_h / 24:.1f} days" if length_h >= 48 else duration(length_h * 3600)


def in_short(findings: Findings) -> Iterator[str]:
    """The answer in short: whether the dump is too small for one; what the first policy's order of jobs does
    alone, and what elastic jobs add to it; then each other share of elastic jobs."""
    base = findings.baseline
    if _too_small(findings.calibration):
        assert findings.calibration is not None
        yield (
            f"The dump is too small: it has {counted(findings.calibration.jobs, 'job')} to compare. A single "
            f"job can decide the figures below. Take a dump of {ENOUGH_JOBS} GPU jobs or more, such as a "
            "whole month."
        )
    first = findings.cases[0].policy if findings.cases else ""
    of_first = [row for row in findings.rows() if row.case.policy == first]
    alone = next((row.case for row in of_first if not row.case.elastic_in_all), None)
    lead = _lead([row for row in of_first if row.case.elastic_in_all])
    if alone is not None:
        yield _of_order(alone, base, findings.software.name)
    if lead is not None:
        yield _of_share(lead, base, alone)
    yield _of_dump(findings)
    for row in of_first:
        if row.case.elastic_in_all:
            if row is not lead:
                yield _of_share(row, base, alone)
        elif row.last_share:
            yield f"No job is elastic at {elastic(row).partition(' (')[0]}: the policy's order acts alone."
    yield from _of_not_counted(base, lead.case if lead is not None else alone, findings.software.name)


def _too_small(calibration: Calibration | None) -> bool:
    return calibration is not None and calibration.jobs < ENOUGH_JOBS


def _lead(rows: Sequence[Row]) -> Row | None:
    """The row that comes nearest to a site that has begun with elastic jobs."""
    return min(rows, key=lambda row: abs(row.case.elastic_share - _LEAD_SHARE), default=None)


def _of_order(alone: Case, base: Case, software: str) -> str:
    return (
        f"With {alone.policy} and no elastic job, all jobs together wait {hours(alone.waited_h)} h, where "
        f"they wait {hours(base.waited_h)} h as {software} schedules: "
        f"{compared(alone.waited_h, base.waited_h, 'h')}. That is the work of its order of jobs alone."
    )


def _of_share(row: Row, base: Case, alone: Case | None) -> str:
    """What this share of elastic jobs adds to `alone`: the same policy without elastic jobs."""
    case, before = row.case, alone or base
    without = "by the order alone" if alone else "without"
    if abs(case.waited_h - before.waited_h) < _LEAST_H:
        waits = f"as long as {without}"
    else:
        way = "less" if case.waited_h < before.waited_h else "more"
        apart = f"{hours(abs(case.waited_h - before.waited_h))} h {way} than {without}"
        waits = f"{hours(case.waited_h)} h: {apart} {change(case.waited_h, before.waited_h)}".rstrip()
    now, then = hours(case.mean_jct_h), hours(before.mean_jct_h)
    ends = "" if now == then else f" Jobs are completed after {now} h on average, instead of {then} h."
    return f"With {case.policy} and {elastic(row)} elastic, all jobs together wait {waits}.{ends}"


def _of_dump(findings: Findings) -> str:
    base = findings.baseline
    they = "it waits" if base.jobs == 1 else "they wait"
    return (
        f"These are {counted(base.jobs, 'GPU job')} that came to {counted(findings.size.gpus, 'GPU')} in "
        f"{_window(findings.window_h)}. Simulated as {findings.software.name} schedules, {they} "
        f"{hours(base.waited_h)} h in all, and {hours(base.idle_wanted_gpu_h)} GPU hours are idle although "
        "waiting jobs ask for them."
    )


def _of_not_counted(base: Case, case: Case | None, software: str) -> Iterator[str]:
    """Why some jobs are not counted, and what happens to their waits: gains could be at their expense."""
    if not base.not_counted:
        return
    jobs = base.jobs + base.not_counted
    yield (
        f"{base.not_counted:,} of {counted(jobs, 'job')} {'is' if base.not_counted == 1 else 'are'} "
        "simulated but not counted, since they came before the first end of a job in the dump. Jobs that "
        "the dump leaves out may have held GPUs until then."
    )
    if case is None:
        return
    if abs(case.not_counted_waited_h - base.not_counted_waited_h) < _LEAST_H:
        waits = f"They wait {hours(base.not_counted_waited_h)} h in both"
    else:
        now, then = hours(case.not_counted_waited_h), hours(base.not_counted_waited_h)
        waits = f"They wait {now} h in the former, and {then} h in the latter"
    yield (
        f"The jobs that are not counted were compared, too, with {_named(case)} and as {software} schedules. "
        f"{waits}."
    )


def _named(case: Case) -> str:
    share = f"{100 * case.elastic_share:.3g}%" if case.elastic_in_all else "none"
    return f"{case.policy} and {share} elastic"


def not_simulated(findings: Findings) -> str:
    """The cases that were left out, and how to have them; "": there is none."""
    shares: dict[str, list[str]] = {}
    for each in findings.not_simulated:
        shares.setdefault(each.policy, []).append(f"{100 * each.elastic_share:.3g}%")
    if not shares:
        return ""
    cases = "; ".join(f"{policy} with {', '.join(of_policy)} elastic" for policy, of_policy in shares.items())
    if findings.at_work:
        return f"flexo was still simulating when it wrote this page. Missing are {cases}."
    return f"Not simulated for lack of time: {cases}. --within all simulates all of it."


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
    if calibration.jobs < ENOUGH_JOBS:
        yield "The dump is too small to say more: so few jobs can agree, or disagree, by chance."
    else:
        yield _verdict(real.mean_h, simulated.mean_h, software)


def _waits(waits: WaitStatistics) -> str:
    mean, median, p95 = hours(waits.mean_h), hours(waits.median_h), hours(waits.p95_h)
    return f"{mean} h on average (median {median} h, 95th percentile {p95} h)"


def _verdict(real_h: float, simulated_h: float, software: Software) -> str:
    longer = max(real_h, simulated_h)
    if longer < _NOTHING_H:
        return "Nobody had to wait, really or simulated: elastic jobs would have started no sooner."
    apart = abs(simulated_h - real_h) / longer
    told = f"In the simulation the mean wait is {_difference(simulated_h, real_h)}"
    if apart <= _NEAR:
        return f"{told}. That is near enough to take the differences between policies as estimates."
    return (
        f"{told}. That is far: take the differences between policies as a direction, not as a size. The "
        f"simulation knows nothing of {software.unknown}."
    )


def _difference(simulated_h: float, real_h: float) -> str:
    apart_h = abs(simulated_h - real_h)
    if apart_h < _LEAST_H:
        return "as long as it really was"
    way = "longer" if simulated_h > real_h else "shorter"
    part = f" ({apart_h / real_h:.0%})" if real_h >= _NOTHING_H else ""
    return f"{duration(3600 * apart_h)}{part} {way} than it really was"


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
