"""`python -m flexo_demos.service`: bring a lab up, let two jobs share Aggregators, kill processes, count."""

from __future__ import annotations

import sys

from flexo_demos.elastic import command
from flexo_demos.elastic.stage import LOGS, Options, lab_of
from flexo_demos.elastic.tell import Teller
from flexo_demos.service import report
from flexo_demos.service.steps import read_lines
from flexo_demos.service.story import JOBS, Plot, Seen, Story
from flexo_lab import Lab, LabSpec
from flexo_lab.spec import Profile

_AGGREGATORS = tuple(f"aggregator-{number}" for number in range(1, 10))
_OURS = (
    *JOBS,
    *(f"{name}.{end}" for name in (*JOBS, *_AGGREGATORS) for end in ("out", "sbatch", "pid")),
    *(LOGS, command.REPORT),
)


def main() -> int:
    """Run the demo. Returns the exit code."""
    description = (
        "Two trainings share a pool's Aggregators, on a real Slurm cluster here. Processes are killed."
    )
    return command.run("flexo_demos.service", "demo-service", description, _OURS, _run)


def _run(options: Options, teller: Teller) -> int:
    """Play the story, then judge it by the jobs' logs and Slurm's accounting."""
    plot, seen = Plot(), Seen()
    spec = LabSpec(
        name=options.name,
        nodes=plot.nodes,
        gpus_per_node=plot.gpus_per_node,
        infer_nodes=1,
        aggregation=True,
        profile=Profile.ACCOUNTING,
    )

    def quicken(lab: Lab) -> None:
        """Have flexod end Aggregators soon that no job needs, and try again soon after a revert."""
        with lab.layout.flexo_toml.open("a") as settings:  # its last section is [aggregation]
            settings.write(f"drain_after_s = {plot.drain_after_s}\nrest_s = {plot.rest_s}\n")
        lab.restart_flexod()

    def play() -> None:
        with lab_of(spec, options, teller, quicken) as lab:
            Story(lab, options.out, plot, seen, teller).play()

    failure = command.failure_of(play, options, teller)
    lines = {name: read_lines(options.out / name) for name in JOBS}
    found = report.found_of(seen, plot, lines, failure, teller.elapsed_s)
    report.write(found, options.out / command.REPORT)
    return command.conclude(options, teller, report.table(found), report.claims(found))


if __name__ == "__main__":
    sys.exit(main())
