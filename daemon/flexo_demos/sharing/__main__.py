"""`python -m flexo_demos.sharing`: bring a lab up, let two jobs share a pretended device, and judge it."""

from __future__ import annotations

import sys

from flexo_demos.elastic import command
from flexo_demos.elastic.stage import LOGS, Options, lab_of
from flexo_demos.elastic.tell import Teller
from flexo_demos.sharing import picture, report
from flexo_demos.sharing.steps import read_steps
from flexo_demos.sharing.story import GUEST, HOSTS, Plot, Seen, Story
from flexo_lab import LabSpec
from flexo_lab.spec import Profile

_PICTURE = "sharing.png"
_JOBS = (*HOSTS, GUEST)
_OURS = (
    *_JOBS,
    *(f"{name}.{end}" for name in _JOBS for end in ("out", "sbatch")),
    *(LOGS, _PICTURE, command.REPORT),
)


def main() -> int:
    """Run the demo. Returns the exit code."""
    description = "Two trainings on one pretended device, on a real Slurm cluster here. No GPU takes part."
    return command.run("flexo_demos.sharing", "demo-sharing", description, _OURS, _run)


def _run(options: Options, teller: Teller) -> int:
    """Play the story, then judge it by the jobs' logs."""
    plot, seen = Plot(), Seen()
    spec = LabSpec(
        name=options.name,
        nodes=plot.nodes,
        gpus_per_node=1,
        infer_nodes=0,
        sharing=True,
        profile=Profile.ACCOUNTING,
    )

    def play() -> None:
        with lab_of(spec, options, teller, lambda _lab: None) as lab:
            Story(lab, options.out, plot, seen, teller).play()

    failure = command.failure_of(play, options, teller)
    steps = {name: read_steps(options.out / name) for name in _JOBS}
    found = report.found_of(seen, plot, options.out, steps, failure, teller.elapsed_s)
    if any(steps.values()):
        picture.draw(seen, steps, options.out / _PICTURE)
    report.write(found, options.out / command.REPORT)
    return command.conclude(options, teller, report.table(found), report.claims(found), _PICTURE)


if __name__ == "__main__":
    sys.exit(main())
