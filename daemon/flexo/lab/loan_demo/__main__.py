"""`python -m flexo.lab.loan_demo`: a lab that lends servers, one day of traffic on it, and what came of it.

Exit codes: 0 the story held, 1 it did not, 2 this machine cannot have a lab, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from flexo.lab import BadSpec, LabError, LabExists, LabSpec, why_unavailable
from flexo.lab.demo.signals import Interrupted, interruptible, undisturbed_afterwards
from flexo.lab.demo.stage import LOGS, Options, clear, lab_of
from flexo.lab.demo.story import StoryFailed
from flexo.lab.demo.tell import Teller
from flexo.lab.loan_demo import picture, report
from flexo.lab.loan_demo.book import Book
from flexo.lab.loan_demo.report import Found, claims, table
from flexo.lab.loan_demo.story import Plot, Seen, Story

_PICTURE, _REPORT = "loans.png", "report.json"
_OURS = ("elastic", "fungible", "inference", "elastic.out", "fungible.out", LOGS, _PICTURE, _REPORT)


def main() -> int:
    """Run the demo; the exit code."""
    options = _parse()
    if (reason := why_unavailable()) is not None:
        print(f"The demo cannot run here: {reason}.", file=sys.stderr)
        return 2
    clear(options.out, _OURS)
    (options.out / "inference").mkdir()
    with interruptible(), Teller() as teller:
        try:
            return _run(options, teller)
        except (LabExists, BadSpec) as error:
            teller.say(f"{error}.", "red")
            return 2
        except Interrupted as interrupted:
            teller.say(f"Ended by {interrupted}; nothing is left of the lab. Logs: {options.out}", "red")
            return 128 + interrupted.number


def _parse() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m flexo.lab.loan_demo",
        description="Inference servers lent to training and taken back, on a real Slurm cluster here.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo-loan"), help="logs, picture and report go here"
    )
    parser.add_argument("--name", default="demo-loan", help="the lab's name")
    parser.add_argument("--keep", action="store_true", help="leave the lab up (flexo lab down NAME ends it)")
    parser.add_argument("--json", action="store_true", help="print report.json at the end")
    arguments = parser.parse_args()
    return Options(arguments.out.resolve(), arguments.name, arguments.keep, arguments.json)


def _run(options: Options, teller: Teller) -> int:
    """Play it, then judge it by what was seen."""
    plot, seen, failure = Plot(), Seen(), ""
    try:
        with undisturbed_afterwards():
            teller.say(f"Everything that happens is kept in {options.out}")
            with lab_of(_spec(options, plot), options, teller, lambda _lab: None) as lab:
                Story(lab, options.out, plot, seen, teller).play()
    except LabExists:
        raise
    except (StoryFailed, LabError) as error:
        failure = str(error)
    except subprocess.TimeoutExpired as error:
        failure = f"The cluster did not answer: {error}."
    return _judge(options, plot, seen, failure, teller)


def _spec(options: Options, plot: Plot) -> LabSpec:
    return LabSpec(
        name=options.name,
        nodes=plot.nodes,
        gpus_per_node=plot.gpus_per_node,
        infer_nodes=plot.servers,
        loans=True,
    )


def _judge(options: Options, plot: Plot, seen: Seen, failure: str, teller: Teller) -> int:
    """The table, the sentences, the picture, the file; 0 if every sentence holds."""
    found = _found(plot, seen, failure, teller.elapsed_s)
    servers = tuple(f"i{number}" for number in range(1, plot.servers + 1))
    if seen.looks and seen.began_at:
        scene = picture.Scene(seen.began_at, servers, seen.looks, seen.inference, found.reclaims)
        picture.draw(scene, options.out / _PICTURE)
    report.write(found, options.out / _REPORT)
    teller.table(table(found))
    teller.judge(claims(found))
    good = all(claim.holds for claim in claims(found))
    written = [name for name in (_PICTURE, _REPORT) if (options.out / name).exists()]
    verdict = "The story held." if good else "The story did not hold."
    teller.say(f"{verdict} See {' and '.join(written)} in {options.out}")
    if options.as_json:
        print((options.out / _REPORT).read_text(), end="", flush=True)
    return 0 if good else 1


def _found(plot: Plot, seen: Seen, failure: str, duration_s: float) -> Found:
    book = seen.books[-1][1] if seen.books else Book()
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
