"""Dumps of sacct as text: made up line by line, or of what a simulation says that happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.policies.registry import make
from flexo_simulation.engine import simulate
from flexo_simulation.estimates import Estimates, Mode
from flexo_simulation.generate import Recipe, generate
from flexo_simulation.records import JobRecord
from flexo_simulation.results import SimulatedRun
from flexo_simulation.scenario import Scenario

COLUMNS = (
    "JobID",
    "JobIDRaw",
    "Cluster",
    "User",
    "Account",
    "Partition",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "State",
    "TimelimitRaw",
    "ReqTRES",
    "AllocTRES",
    "NNodes",
    "NodeList",
    "JobName",
)
BEGIN = datetime(2026, 10, 1, tzinfo=UTC).timestamp()


def stamp(seconds: float) -> str:
    """A time as sacct prints it, counted from BEGIN."""
    return datetime.fromtimestamp(BEGIN + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def line(
    job_id: str = "100", submit: float = 0, wait: float = 60, elapsed: int = 600, gpus: int = 4, **said
) -> str:
    """A job as sacct would tell of it; what a test says in `said` stands in its column instead."""
    cells = {
        "JobID": job_id,
        "JobIDRaw": job_id,
        "Cluster": "lab",
        "User": "ann",
        "Account": "research",
        "Partition": "gpu",
        "Submit": stamp(submit),
        "Eligible": stamp(submit),
        "Start": stamp(submit + wait),
        "End": stamp(submit + wait + elapsed),
        "ElapsedRaw": str(elapsed),
        "State": "COMPLETED",
        "TimelimitRaw": "1440",
        "ReqTRES": f"billing=8,cpu=8,gres/gpu={gpus},mem=64G,node=1",
        "AllocTRES": f"billing=8,cpu=8,gres/gpu={gpus},mem=64G,node=1",
        "NNodes": "1",
        "NodeList": "gpu01",
        "JobName": "train",
    }
    return "|".join(str({**cells, **said}[column]) for column in COLUMNS)


def dump(lines: Iterable[str]) -> str:
    """With its header, as sacct --parsable2 prints it."""
    return "\n".join(["|".join(COLUMNS), *lines]) + "\n"


def dump_of(outcome: SimulatedRun, gpus_per_node: int) -> str:
    """What sacct would have said if the simulation had been a cluster. Times are cut to seconds, as there.

    The simulation does not tell the nodes of jobs. Each job is put on the fullest node with enough idle GPUs,
    or else on the emptiest nodes.
    """
    lines = []
    names = _placed(outcome, gpus_per_node)
    for record in outcome.records:
        if record.first_start_at is None or record.ended_at is None:
            continue
        gpus = record.job.requested_workers
        started, ended = int(record.first_start_at), int(record.ended_at)
        lines.append(
            line(
                str(record.job.job_id),
                submit=int(record.job.submitted_at),
                wait=started - int(record.job.submitted_at),
                elapsed=ended - started,
                gpus=gpus,
                NNodes=len(names[record.job.job_id]),
                NodeList=_as_slurm(names[record.job.job_id]),
                Account=record.job.tenant,
                TimelimitRaw=-(-2 * (ended - started) // 60),
            )
        )
    return dump(lines)


def _placed(outcome: SimulatedRun, gpus_per_node: int) -> dict[int, list[int]]:
    """The numbers of each job's nodes, from 1."""
    nodes = range(1, -(-int(outcome.gpus) // gpus_per_node) + 1)
    idle = dict.fromkeys(nodes, gpus_per_node)
    placed: dict[int, dict[int, int]] = {}
    ran = [record for record in outcome.records if record.first_start_at is not None]
    ends = [(record.ended_at, 0, record) for record in ran if record.ended_at is not None]
    starts = [(record.first_start_at, 1, record) for record in ran]
    for _, starting, record in sorted(ends + starts, key=lambda each: (*each[:2], each[2].job.job_id)):
        number, left = record.job.job_id, record.job.requested_workers
        if not starting:
            for node, gpus in placed[number].items():
                idle[node] += gpus
            continue
        fits = min((node for node in nodes if idle[node] >= left), key=lambda node: idle[node], default=None)
        placed[number] = {}
        for node in [fits] if fits else sorted(nodes, key=lambda node: -idle[node]):
            if gpus := min(left, idle[node]):
                placed[number][node] = gpus
                idle[node] -= gpus
                left -= gpus
    return {number: sorted(gpus) for number, gpus in placed.items()}


def _as_slurm(nodes: list[int]) -> str:
    numbers = ",".join(f"{node:02}" for node in nodes)
    return f"gpu{numbers}" if len(nodes) == 1 else f"gpu[{numbers}]"


def _seconds(record: JobRecord) -> int:
    return int(record.ended_at or 0) - int(record.first_start_at or 0)


def sample() -> str:
    """The dump in examples/site/sacct.txt: jobs as in the Philly trace, on four nodes that backfill them by
    time limits of twice the time that each job runs."""
    drawn = generate(Recipe(jobs=600, gpus=32, seed=4, load=1.0, longest_s=86_400))
    scenario = Scenario((NodeGroup(4, 8),), estimates=Estimates(Mode.LIMIT))
    alone = simulate(drawn, make("backfill"), scenario)
    limits_s = {each.job.job_id: 60 * -(-2 * _seconds(each) // 60) for each in alone.records}
    limited = replace(drawn, jobs=tuple(replace(j, time_limit_s=limits_s[j.job_id]) for j in drawn.jobs))
    return dump_of(simulate(limited, make("backfill"), scenario), gpus_per_node=8)


if __name__ == "__main__":
    print(sample(), end="")
