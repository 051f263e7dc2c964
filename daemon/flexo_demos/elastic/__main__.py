"""`python -m flexo_demos.elastic`: bring a lab up, play the story on it, and print whether the story held."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from flexo_demos.elastic import command, picture, report
from flexo_demos.elastic.cluster import DemoCluster
from flexo_demos.elastic.measure import EpochPlan, balance, course, loss_curve, read_logs
from flexo_demos.elastic.plot import EXAMPLE, Plot
from flexo_demos.elastic.queue import holdings
from flexo_demos.elastic.report import Report, claims, elastic_of, table
from flexo_demos.elastic.runs import Reference, RunResult
from flexo_demos.elastic.slurm import SlurmDemo
from flexo_demos.elastic.stage import LOGS, Options, lab_of, yarn_lab_of
from flexo_demos.elastic.story import Seen, Story, StoryFailed
from flexo_demos.elastic.tell import Teller
from flexo_demos.elastic.yarn import YarnDemo
from flexo_demos.elastic.yarn_inference import Inference
from flexo_lab import Lab, LabSpec
from flexo_lab.yarn import YarnLabSpec

_PICTURE = "demo.png"
_OURS = (
    "elastic",
    "reference",
    LOGS,
    "elastic.out",
    "rigid.out",
    "rigid.started",
    _PICTURE,
    command.REPORT,
)


def main() -> int:
    """Run the demo. Returns the exit code."""
    description = "An elastic Horovod job on a real cluster on this machine, told as it happens."
    return command.run("flexo_demos.elastic", "demo", description, _OURS, _run, yarn_too=True)


def _run(options: Options, teller: Teller) -> int:
    """Play the story, then judge it by the logs."""
    plot = Plot(epochs=40) if options.yarn else Plot()  # a loan more takes longer
    reference = Reference(EXAMPLE / "train.py", options.out / "reference", plot.epochs, plot.batch)
    seen = Seen()

    def play() -> None:
        reference.start()
        with _cluster_of(options, plot, teller) as cluster:
            _tell_reference(reference.result(), cluster, teller)
            Story(cluster, options.out, plot, seen, teller).play()

    try:
        failure = command.failure_of(play, options, teller)
    finally:
        reference.stop()
    return _judge(options, _found(options, plot, seen, failure, teller.elapsed_s), teller)


@contextmanager
def _cluster_of(options: Options, plot: Plot, teller: Teller) -> Iterator[DemoCluster]:
    """A lab of the kind that the options name."""
    name, nodes, gpus = options.name, plot.nodes, plot.gpus_per_node
    if options.yarn:
        spec = YarnLabSpec(name, nodes, plot.servers, gpus, loans=True)
        with yarn_lab_of(spec, options, teller) as yarn, closing(Inference(yarn)) as inference:
            yield YarnDemo(yarn, inference)
    else:
        slurm_spec = LabSpec(name=name, nodes=nodes, gpus_per_node=gpus, flexod=options.web, web=options.web)
        with lab_of(slurm_spec, options, teller, Lab.start_flexod) as slurm:
            if options.web:
                _tell_of_the_pages(slurm, teller)
            yield SlurmDemo(slurm)


def _tell_of_the_pages(lab: Lab, teller: Teller) -> None:
    """Print a link to the pages of flexo-web."""
    said = json.loads(lab.run(["flexo", "web", "--json"]).stdout)
    teller.say(f"Watch it on web pages: {said['link']}", "bold")
    minutes = round(said["expires_in_s"] / 60)
    teller.show(f"the link works once, within {minutes} minutes; forward its port if this host is not yours")


def _tell_reference(result: RunResult | None, cluster: DemoCluster, teller: Teller) -> None:
    if result is None:
        raise StoryFailed(
            "The training script failed by itself, without a cluster and flexod: see reference/output."
        )
    teller.say(f"For comparison: the training script alone, one worker, no {cluster.software}, no flexod, "
               f"reaches {100 * result.accuracy:.1f}%")  # fmt: skip


def _found(options: Options, plot: Plot, seen: Seen, failure: str, duration_s: float) -> Report:
    """Measure the logs, and draw the picture."""
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
            gpus=(plot.nodes + (plot.servers if seen.loan else 0)) * plot.gpus_per_node,
            holdings=holdings(seen.looks, seen.elastic_id, rigid.job_id if rigid else None),
            loss=loss_curve(logs),
            resizes=went.resizes,
            rigid_submitted_at=rigid.submitted_at if rigid else None,
            rigid_started_at=rigid.started_at if rigid else None,
        )
        picture.draw(scene, options.out / _PICTURE)
    return Report(
        software=seen.software,
        slurm_version=seen.version,
        horovod_version=result.horovod_version if result else "",
        duration_s=round(duration_s, 1),
        elastic=elastic,
        rigid=seen.rigid,
        loan=seen.loan,
        satellites_seen=len(seen.satellites),
        satellites_left=seen.satellites_left,
        failure=failure,
    )


def _judge(options: Options, found: Report, teller: Teller) -> int:
    """Print the table and the sentences, and write the report. Returns 0 if every sentence holds, else 1."""
    report.write(found, options.out / command.REPORT)
    return command.conclude(options, teller, table(found), claims(found), _PICTURE)


if __name__ == "__main__":
    sys.exit(main())
