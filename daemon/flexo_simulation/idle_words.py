"""The idle intervals of GPUs, in plain sentences and a table: for the terminal and for the page alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flexo.words import counted
from flexo_simulation.idle_gpus import IdleGpus, NotTold
from flexo_simulation.idle_intervals import MINUTES, Distribution, Longer
from flexo_simulation.whatif_words import hours

HEADING: Final = "How long GPUs were idle between jobs"
COLUMNS: Final = (
    "of a node's idle GPUs",
    "intervals",
    "cut off",
    "median",
    "90% at most",
    *(f"idle time in over {minutes} min" for minutes in MINUTES),
)
SHORT: Final = (
    "OF A NODE'S IDLE GPUS",
    "INTERVALS",
    "CUT OFF",
    "MEDIAN",
    "90%",
    *(f"> {minutes} MIN" for minutes in MINUTES),
)
EXPLAINED: Final = (
    "median, 90%: of the lengths of intervals that are not cut off; over 1 min and more: the share of the "
    "idle GPU time that lies in longer intervals. An interval that is cut off counts with the part that is "
    "seen. 'At most' is the share if every such interval was really longer"
)
NOT_SEEN: Final = (
    "Nodes that were down, drained or reserved count as idle: sacct does not tell when that was; sacctmgr "
    "show event does. So do GPUs whose node had no CPU or memory left."
)


def sentences(idle: IdleGpus | NotTold) -> Iterator[str]:
    """What was idle, what a malleable job could have had of it, and what is not known."""
    if isinstance(idle, NotTold):
        yield f"How long GPUs were idle between jobs cannot be told: {idle.why}."
        return
    yield from _share_of_time(idle)
    last = idle.readings[0]
    if last.longer:
        minute = last.longer[0]
        yield (
            f"{_share(minute)} of that idle time lies in intervals longer than {minute.minutes:g} minute. A "
            "malleable job can use such intervals: it grows when a GPU becomes idle, and gives the GPU back "
            f"when another job needs it. Each of the two resizes costs {idle.resize_s:g} s."
        )
        yield (
            "sacct does not tell which GPUs of a node a job had. The two readings below are the two ends of "
            "what can have been."
        )
    if any(each.cut_off for each in idle.readings):
        yield (
            "Intervals that the begin or end of the dump cuts off, or time that is not known, were really "
            "longer than what is seen of them. They are counted apart."
        )
    yield from _not_known(idle)
    yield NOT_SEEN


def _share_of_time(idle: IdleGpus) -> Iterator[str]:
    gpus, nodes = counted(idle.gpus, "GPU"), counted(idle.nodes, "node")
    begin = f"In {duration(idle.window_h * 3600)}, {gpus} of {nodes}"
    idle_h, known_h = hours(idle.idle_gpu_h), hours(idle.known_gpu_h)
    if idle.idle_share is None:
        yield f"{begin} were in use. The share of all their time in which they were idle cannot be told."
    else:
        of_all = "" if idle.unknown_gpu_h else f": {idle_h} GPU hours"
        yield f"{begin} were idle for {idle.idle_share:.1%} of the time{of_all}."
    if idle.unused_nodes:
        yield f"No job in the dump used {idle.unused_nodes:,} of these nodes: they count as idle all along."
    if idle.unknown_gpu_h:
        known = idle.known_gpu_h / (idle.known_gpu_h + idle.unknown_gpu_h)
        yield (
            f"The number of idle GPUs of each node is known for {known:.0%} of the GPU time: {idle_h} of "
            f"{known_h} GPU hours were idle. The intervals below are of this part only."
        )


def _not_known(idle: IdleGpus) -> Iterator[str]:
    if not idle.gpus_said:
        yield (
            "A node's GPUs are the most that were in use on it at one time. GPUs that no job used are "
            "missing: --gpus-per-node says how many a node has."
        )
    if idle.unknown_runs:
        yield (
            f"{counted(idle.unknown_runs, 'job')} ran on several nodes, and sacct does not tell how many "
            f"GPUs each node gave. Their time on these nodes is left out: {hours(idle.unknown_gpu_h)} GPU "
            "hours. --gpus-per-node tells it of jobs that had all GPUs of each node."
        )
    if idle.nameless_runs:
        yield (
            f"Without a node in NodeList: {counted(idle.nameless_runs, 'job')}. While such a job ran, "
            "nothing is known of any node, and that time is left out."
        )
    if idle.unknown_nodes:
        yield f"Left out, since no job tells how many GPUs it has: {counted(idle.unknown_nodes, 'node')}."
    if idle.one_user:
        yield (
            f"Warning: all jobs in the dump are of one user, {idle.one_user}. GPUs of other users' jobs look "
            "idle, if there are any. An operator can dump all jobs."
        )


def rows(idle: IdleGpus) -> Iterator[tuple[str, ...]]:
    """The rows under COLUMNS, one for each reading; none if no GPU was idle."""
    for each in idle.readings:
        if each.intervals:
            yield (
                each.order.value,
                f"{each.intervals:,}",
                f"{each.cut_off:,}",
                _percentile(each, 50),
                _percentile(each, 90),
                *(_share(longer) for longer in each.longer),
            )


def _percentile(found: Distribution, percent: int) -> str:
    return duration(found.percentiles_s[percent]) if found.percentiles_s else "-"


def _share(longer: Longer) -> str:
    at_least, at_most = f"{longer.at_least:.1%}", f"{longer.at_most:.1%}"
    return at_least if at_least == at_most else f"{at_least} (at most {at_most})"


def duration(seconds: float) -> str:
    """A length of time as text, such as ``42 s``, ``3.5 min`` or ``2.1 days``."""
    for unit, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit * (2 if name == "days" else 1):
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"
