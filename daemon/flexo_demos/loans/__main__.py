"""`python -m flexo_demos.loans`: bring up a lab that lends, play a day of traffic, and judge the results."""

from __future__ import annotations

import sys

from flexo_demos.elastic import command
from flexo_demos.elastic.stage import LOGS, Options, lab_of
from flexo_demos.elastic.tell import Teller
from flexo_demos.loans import picture, report
from flexo_demos.loans.book import LoanHistory
from flexo_demos.loans.report import Found, claims, table
from flexo_demos.loans.story import Plot, Seen, Story
from flexo_lab import LabSpec

_PICTURE = "loans.png"
_OURS = ("elastic", "fungible", "inference", "elastic.out", "fungible.out", LOGS, _PICTURE, command.REPORT)


def main() -> int:
    """Run the demo. Returns the exit code."""
    description = "Inference servers lent to training and taken back, on a real Slurm cluster here."
    return command.run("flexo_demos.loans", "demo-loan", description, _OURS, _run)


def _run(options: Options, teller: Teller) -> int:
    """Play the story, then judge it by its observations."""
    plot, seen = Plot(), Seen()
    (options.out / "inference").mkdir()

    def play() -> None:
        with lab_of(_spec(options, plot), options, teller, lambda _lab: None) as lab:
            Story(lab, options.out, plot, seen, teller).play()

    return _judge(options, plot, seen, command.failure_of(play, options, teller), teller)


def _spec(options: Options, plot: Plot) -> LabSpec:
    return LabSpec(
        name=options.name,
        nodes=plot.nodes,
        gpus_per_node=plot.gpus_per_node,
        infer_nodes=plot.servers,
        loans=True,
    )


def _judge(options: Options, plot: Plot, seen: Seen, failure: str, teller: Teller) -> int:
    """Print table and sentences, draw the picture, write the report. Returns 0 if every sentence holds."""
    found = _found(plot, seen, failure, teller.elapsed_s)
    servers = tuple(f"i{number}" for number in range(1, plot.servers + 1))
    if seen.looks and seen.began_at:
        scene = picture.Scene(seen.began_at, servers, seen.looks, seen.inference, found.reclaims)
        picture.draw(scene, options.out / _PICTURE)
    report.write(found, options.out / command.REPORT)
    return command.conclude(options, teller, table(found), claims(found), _PICTURE)


def _found(plot: Plot, seen: Seen, failure: str, duration_s: float) -> Found:
    book = seen.books[-1][1] if seen.books else LoanHistory()
    servers = tuple(f"i{number}" for number in range(1, plot.servers + 1))
    preempted, needlessly = report.preemptions(seen.looks, seen.books)
    return Found(
        slurm_version=seen.slurm_version,
        duration_s=round(duration_s, 1),
        servers=plot.servers,
        gpus_per_server=plot.gpus_per_node,
        loans=len(book.standing) + len(book.returned),
        reclaims=report.reclaims_of(seen.looks, seen.inference, book),
        inference=tuple(seen.inference),
        bases_preempted=preempted,
        bases_preempted_needlessly=needlessly,
        satellites_scaled_in=report.scaled_in(seen.looks),
        sizes=seen.course.sizes if seen.course else (),
        resizes_unclean=sum(not resize.clean for resize in seen.course.resizes) if seen.course else 0,
        lent_gpu_s=report.lent_gpu_seconds(seen.looks, servers),
        failure=failure,
    )


if __name__ == "__main__":
    sys.exit(main())
