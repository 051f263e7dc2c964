"""`python -m flexo.lab.demo`: bring a lab up, play the story on it, take it down, and say whether it held.

Exit codes: 0 the story happened, 1 it did not, 2 this machine cannot have a lab, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from flexo.lab import BadSpec, Lab, LabError, LabExists, LabSpec, why_unavailable
from flexo.lab.demo import picture, report
from flexo.lab.demo.measure import EpochPlan, balance, course, loss_curve, read_logs
from flexo.lab.demo.queue import holdings
from flexo.lab.demo.report import Report, claims, elastic_of, table
from flexo.lab.demo.runs import Reference, RunResult
from flexo.lab.demo.signals import Interrupted, interruptible, undisturbed_afterwards
from flexo.lab.demo.stage import LOGS, Options, clear, lab_of
from flexo.lab.demo.story import EXAMPLE, Plot, Seen, Story, StoryFailed
from flexo.lab.demo.tell import Teller

_OURS = (
    "elastic",
    "reference",
    LOGS,
    "elastic.out",
    "rigid.out",
    "rigid.started",
    "demo.png",
    "report.json",
)


def main() -> int:
    """Run the demo; the exit code."""
    options = _parse()
    if (reason := why_unavailable()) is not None:
        print(f"The demo cannot run here: {reason}.", file=sys.stderr)
        return 2
    clear(options.out, _OURS)
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
        prog="python -m flexo.lab.demo",
        description="An elastic Horovod job on a real Slurm cluster on this machine, told as it happens.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="logs, picture and report go here"
    )
    parser.add_argument("--name", default="demo", help="the lab's name")
    parser.add_argument("--keep", action="store_true", help="leave the lab up (flexo lab down NAME ends it)")
    parser.add_argument("--json", action="store_true", help="print report.json at the end")
    arguments = parser.parse_args()
    return Options(arguments.out.resolve(), arguments.name, arguments.keep, arguments.json)


def _run(options: Options, teller: Teller) -> int:
    """Play it, then judge it by what was logged."""
    plot = Plot()
    reference = Reference(EXAMPLE / "train.py", options.out / "reference", plot.epochs, plot.batch)
    seen = Seen()
    failure = ""
    try:
        with undisturbed_afterwards():
            teller.say(f"Everything that happens is kept in {options.out}")
            reference.start()
            with lab_of(_spec(options, plot), options, teller, Lab.start_flexod) as lab:
                _tell_reference(reference.result(), teller)
                Story(lab, options.out, plot, seen, teller).play()
    except LabExists:
        raise
    except (StoryFailed, LabError) as error:
        failure = str(error)
    except subprocess.TimeoutExpired as error:
        failure = f"The cluster did not answer: {error}."
    finally:
        reference.stop()
    return _judge(options, _found(options, plot, seen, failure, teller.elapsed_s), teller)


def _spec(options: Options, plot: Plot) -> LabSpec:
    return LabSpec(name=options.name, nodes=plot.nodes, gpus_per_node=plot.gpus_per_node, flexod=False)


def _tell_reference(result: RunResult | None, teller: Teller) -> None:
    if result is None:
        raise StoryFailed(
            "The training script failed by itself, without Slurm and flexo: see reference/output."
        )
    teller.say(f"For comparison: the training script alone, one worker, no Slurm, no flexo, "
               f"reaches {100 * result.accuracy:.1f}%")  # fmt: skip


def _found(options: Options, plot: Plot, seen: Seen, failure: str, duration_s: float) -> Report:
    """Measure what was logged, and draw it."""
    result = RunResult.read(options.out / "elastic")
    reference = RunResult.read(options.out / "reference")
    logs = read_logs(options.out / "elastic")
    went = course(logs)
    elastic = None
    if went is not None and reference is not None:
        elastic = elastic_of(
            went,
            balance(logs, EpochPlan(plot.epochs, plot.batch, reference.train_samples)),
            job_id=seen.elastic_id,
            ended_as=seen.elastic_state,
            final_accuracy=result.accuracy if result else None,
            reference_accuracy=reference.accuracy,
            rigid=seen.rigid,
        )
        rigid = seen.rigid
        scene = picture.Scene(
            began_at=seen.submitted_at,
            gpus=plot.nodes * plot.gpus_per_node,
            holdings=holdings(seen.looks, seen.elastic_id, rigid.job_id if rigid else None),
            loss=loss_curve(logs),
            resizes=went.resizes,
            rigid_submitted_at=rigid.submitted_at if rigid else None,
            rigid_started_at=rigid.started_at if rigid else None,
        )
        picture.draw(scene, options.out / "demo.png")
    return Report(
        slurm_version=seen.slurm_version,
        horovod_version=result.horovod_version if result else "",
        duration_s=round(duration_s, 1),
        elastic=elastic,
        rigid=seen.rigid,
        satellites_seen=len(seen.satellites),
        satellites_left=seen.satellites_left,
        failure=failure,
    )


def _judge(options: Options, found: Report, teller: Teller) -> int:
    """The table, the sentences, the files; 0 if every sentence holds."""
    report.write(found, options.out / "report.json")
    sentences = claims(found)
    teller.table(table(found))
    teller.judge(sentences)
    good = all(sentence.holds for sentence in sentences)
    verdict = "The story held." if good else "The story did not hold."
    written = [name for name in ("demo.png", "report.json") if (options.out / name).exists()]
    teller.say(f"{verdict} See {' and '.join(written)} in {options.out}")
    if options.as_json:
        print((options.out / "report.json").read_text(), end="", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
