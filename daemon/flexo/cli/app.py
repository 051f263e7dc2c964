"""The commands that read and steer flexod, and the page that `flexo --help` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import flexo
from flexo.cli import completion, delegate, doctor, forecast, lab, loans, simulate, whatif
from flexo.cli.connection import Busy, Daemon, Refusal, Unreachable, find_address
from flexo.cli.exit_codes import ExitCode
from flexo.cli.output import (
    Json,
    ago,
    clock,
    complain,
    print_json,
    print_line,
    print_pairs,
    print_table,
    span,
)
from flexo_protos.v1 import admin_pb2

_TRAINING = "training"
RETRY_S = 2.0

_T = TypeVar("_T")

DaemonOption = Annotated[
    str | None,
    typer.Option(
        "--daemon", metavar="HOST:PORT", help="flexod's address; else $FLEXO_DAEMON, else the configuration."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
JobArgument = Annotated[
    int, typer.Argument(metavar="JOB", min=1, help="Slurm's id of the elastic job (its base).")
]
WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="While the job is being resized or profiled, try again until it is not."),
]

app = typer.Typer(
    name="flexo",
    help="Elastic deep learning on Slurm: running jobs grow into idle GPUs and give them back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(lab.app, name="lab")


def run(arguments: list[str]) -> int:
    """Carry out one command line; the exit code."""
    completion.prepare()
    try:
        app(arguments, prog_name="flexo")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.REFUSED
    except Busy as error:
        complain(str(error))
        return ExitCode.BUSY
    except Refusal as error:
        complain(str(error))
        return ExitCode.REFUSED
    except Unreachable as error:
        complain(str(error))
        return ExitCode.UNREACHABLE
    return ExitCode.DONE


@app.command()
def status(daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """What flexod sees and does at large."""
    reply = Daemon(find_address(daemon)).status()
    if as_json:
        print_json(_status_as_json(reply))
        return
    print_pairs(
        [
            ("flexod", f"{reply.flexod_version}, up for {ago(reply.started_at)}"),
            ("cluster", f"{reply.cluster}, Slurm {reply.slurm_version}"),
            ("policy", reply.policy + (" (dry run: decides, changes nothing)" if reply.dry_run else "")),
            ("last look", _last_look(reply)),
            ("GPUs", _gpus(reply)),
            ("elastic jobs", f"{reply.elastic_jobs}, {reply.leaders} with a leader attached"),
            *((("loans", loans.lending_line(reply.lending)),) if reply.HasField("lending") else ()),
            *(("slow GPU", _slow_gpu(gpu)) for gpu in reply.slow_gpus),
            ("trouble", reply.trouble or "none"),
        ]
    )


@app.command()
def jobs(daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """All elastic jobs and the satellites that they have."""
    reply = Daemon(find_address(daemon)).jobs()
    if as_json:
        print_json({"jobs": [_job_as_json(job) for job in reply.jobs]})
        return
    if not reply.jobs:
        print_line("no elastic jobs")
        return
    print_table(
        ("JOB", "USER", "RANGE", "CAP", "WORKERS", "GRANTED", "DONE", "LEFT", "STATE", "NODES"),
        [
            (
                _job_name(job),
                job.user,
                f"{job.min}-{job.max}",
                str(job.wanted) if job.wanted else "",
                str(job.workers),
                str(job.granted),
                f"{job.progress:.0%}" if job.progress else "",
                _left(job),
                _job_state(job),
                _nodes(job),
            )
            for job in reply.jobs
        ],
        right=("WORKERS", "GRANTED", "CAP", "DONE", "LEFT"),
    )


@app.command()
def why(job: JobArgument, daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """Why a job has the workers that it has, and what happened to it last."""
    reply = Daemon(find_address(daemon)).explain(job)
    if as_json:
        print_json({"job_id": job, "sentences": list(reply.sentences), "events": _events_as_json(reply)})
        return
    for sentence in reply.sentences or ["flexod has nothing to say of this job yet"]:
        print_line(sentence)
    if reply.events:
        print_line("")
        _print_events(reply.events[:10])


@app.command()
def events(job: JobArgument, daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """What the journal holds of a job, newest first."""
    reply = Daemon(find_address(daemon)).explain(job)
    if as_json:
        print_json({"job_id": job, "events": _events_as_json(reply)})
        return
    _print_events(reply.events)


@app.command()
def scale(
    job: JobArgument,
    workers: Annotated[
        str, typer.Argument(metavar="N|auto", help="At most N workers, or auto: as many as the range allows.")
    ],
    daemon: DaemonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cap a job at N workers. Its owner and administrators may."""
    _print_answer(job, Daemon(find_address(daemon)).scale(job, _workers(workers)).text, as_json)


@app.command("scale-out")
def scale_out(
    job: JobArgument,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, help="How many workers more.")],
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give a job N workers more than it has, as soon as GPUs are idle. Its owner and administrators may."""
    flexod = Daemon(find_address(daemon))
    _print_answer(job, _patiently(lambda: flexod.scale_out(job, workers), wait).text, as_json)


@app.command("scale-in")
def scale_in(
    job: JobArgument,
    workers: Annotated[
        int | None, typer.Argument(metavar="N", min=1, help="How many workers fewer; whole satellites go.")
    ] = None,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Instead of N: the satellite on this node goes.")
    ] = "",
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take N workers from a job, or those on one node. Its owner and administrators may."""
    if (workers is None) == (not node):
        raise typer.BadParameter("say either how many workers go or --node, one of them", param_hint="N")
    flexod = Daemon(find_address(daemon))
    _print_answer(job, _patiently(lambda: flexod.scale_in(job, workers or 0, node), wait).text, as_json)


@app.command()
def profile(
    job: JobArgument,
    low: Annotated[int, typer.Option("--min", metavar="A", min=1, help="The fewest workers to measure.")],
    high: Annotated[
        int, typer.Option("--max", metavar="B", min=1, help="The most; at most what it has now.")
    ],
    batches: Annotated[
        int, typer.Option("--batches", metavar="N", min=0, help="Mini-batches to measure at each size.")
    ] = 0,
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a job train with each number of workers from A to B for a while, and print how fast that went."""
    if low > high:
        raise typer.BadParameter(f"--min {low} is above --max {high}", param_hint="--min")
    flexod = Daemon(find_address(daemon))
    last = _patiently(lambda: _profiled(flexod, job, low, high, batches), wait)
    if as_json:
        print_json({"job_id": job, "left_out": last.text, "points": [_point_as_json(p) for p in last.points]})
        return
    _print_points(last.points)
    if last.text:
        complain(f"left out: {last.text}")


@app.command()
def checkpoint(
    job: JobArgument,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The file, as the job's first worker's node sees it.")
    ],
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Have a job write its state to PATH between two mini-batches. Its owner and administrators may."""
    flexod = Daemon(find_address(daemon))
    answer = _patiently(lambda: flexod.checkpoint(job, str(Path.cwd() / path)), wait)
    _print_answer(job, answer.text, as_json)


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print flexo's version."""
    if as_json:
        print_json({"version": flexo.__version__})
        return
    print_line(f"flexo {flexo.__version__}")


app.command()(doctor.doctor)
app.command()(completion.completion)
app.command()(loans.loans)
app.command()(forecast.forecast)
app.command(cls=simulate.JsonCommand)(simulate.simulate)
app.command(cls=simulate.JsonCommand)(whatif.whatif)


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("run", context_settings=_PASSED_ON)
def run_script(context: typer.Context) -> None:
    """Inside a job: train elastically (flexo run python train.py ...)."""
    raise typer.Exit(delegate("run", context.args))


@app.command(context_settings=_PASSED_ON)
def hosts(context: typer.Context) -> None:
    """Inside a job: print its hosts and slots, as horovodrun's discovery script does."""
    raise typer.Exit(delegate("hosts", context.args))


def _patiently(call: Callable[[], _T], wait: bool) -> _T:
    """The answer to `call`; with `wait`, once the job has time for it."""
    said = ""
    while True:
        try:
            return call()
        except Busy as error:
            if not wait:
                raise
            if str(error) != said:
                said = str(error)
                complain(said)
        time.sleep(RETRY_S)


def _print_answer(job: int, text: str, as_json: bool) -> None:
    """What flexod says that it does."""
    if as_json:
        print_json({"job_id": job, "text": text})
    else:
        print_line(text)


def _profiled(flexod: Daemon, job: int, low: int, high: int, batches: int) -> admin_pb2.ProfileJobReply:
    """The last reply; what comes before is told on the error output as it comes."""
    reply = admin_pb2.ProfileJobReply()
    for reply in flexod.profile(job, low, high, batches):
        if reply.done:
            break
        for text in filter(None, [reply.text, *map(_measured, reply.points)]):
            complain(text)
    return reply


def _measured(point: admin_pb2.ScalingPoint) -> str:
    workers = "1 worker" if point.workers == 1 else f"{point.workers} workers"
    return f"{workers}: {point.step_s:.4g} s a step ({point.batches} measured)"


def _print_points(points: Iterable[admin_pb2.ScalingPoint]) -> None:
    columns = ("WORKERS", "SAMPLES/S", "STEP S", "SYNC S", "EFFICIENCY")
    print_table(
        columns,
        [
            (
                str(point.workers),
                f"{point.samples_per_s:.1f}" if point.samples_per_s else "?",
                f"{point.step_s:.4f}",
                f"{point.sync_s:.4f}",
                f"{point.efficiency:.2f}",
            )
            for point in points
        ],
        right=columns,
    )


def _slow_gpu(gpu: admin_pb2.SlowGpuView) -> str:
    which = f"{gpu.node}: GPU {', '.join(map(str, gpu.gpus))}" if gpu.gpus else f"{gpu.node}: not known which"
    until = clock(gpu.until_at)
    return f"{which}, {gpu.ratio:.1f} times as slow as others of job {gpu.job_id}; left alone until {until}"


def _workers(text: str) -> int:
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise typer.BadParameter(
            f"'{text}' is neither a number of workers from 1 nor auto", param_hint="N|auto"
        )
    return int(text)


def _last_look(reply: admin_pb2.GetStatusReply) -> str:
    if not reply.last_cycle_at:
        return "none yet"
    took = f"took {reply.read_cost_s * 1000:.0f} ms"
    return f"{ago(reply.last_cycle_at)} ago, {took}, every {reply.interval_s:g} s"


def _gpus(reply: admin_pb2.GetStatusReply) -> str:
    idle, taken = reply.gpus_idle, reply.gpus_in_satellites
    return f"{reply.gpus} on {reply.nodes} nodes: {idle} idle, {taken} in satellites"


def _job_name(job: admin_pb2.ElasticJob) -> str:
    return f"{job.job_id}.r{job.restart_count}" if job.restart_count else str(job.job_id)


def _job_state(job: admin_pb2.ElasticJob) -> str:
    if not job.attached:
        return "no leader"
    if job.errand:
        return job.errand
    if not job.scalable:
        return "starting"
    moving = [grant for grant in job.grants if grant.state != _TRAINING]
    return "resizing" if moving else "training"


def _left(job: admin_pb2.ElasticJob) -> str:
    """An estimate, marked with a ~ where it is not by the job's own progress."""
    if not job.left_by:
        return ""
    return f"{'' if job.left_by == 'progress' else '~'}{span(job.left_s)}"


def _nodes(job: admin_pb2.ElasticJob) -> str:
    """Base nodes, then each satellite with its workers, and its state while it is on its way."""
    satellites = [
        f"{grant.node}+{grant.workers}" + ("" if grant.state == _TRAINING else f" ({grant.state})")
        for grant in job.grants
    ]
    return " ".join([*job.base_nodes, *satellites])


def _job_as_json(job: admin_pb2.ElasticJob) -> dict[str, Json]:
    return {
        "job_id": job.job_id,
        "restart_count": job.restart_count,
        "user": job.user,
        "min": job.min,
        "max": job.max,
        "workers": job.workers,
        "granted": job.granted,
        "gpus_per_worker": job.gpus_per_worker,
        "wanted": job.wanted or None,
        "attached": job.attached,
        "scalable": job.scalable,
        "batches_committed": job.batches_committed,
        "errand": job.errand or None,
        "batch": job.batch or None,
        "progress": job.progress or None,
        "left_s": job.left_s if job.left_by else None,
        "left_by": job.left_by or None,
        "scaling": [_point_as_json(point) for point in job.scaling],
        "base_nodes": list(job.base_nodes),
        "grants": [
            {
                "grant_id": grant.grant_id,
                "node": grant.node,
                "workers": grant.workers,
                "state": grant.state,
                "slurm_job_id": grant.slurm_job_id or None,
                "since_at": grant.since_at,
            }
            for grant in job.grants
        ],
    }


def _status_as_json(reply: admin_pb2.GetStatusReply) -> dict[str, Json]:
    nested = ("slow_gpus", "lending")
    plain = {key.name: getattr(reply, key.name) for key in reply.DESCRIPTOR.fields if key.name not in nested}
    slow: list[Json] = [
        {
            "node": gpu.node,
            "gpus": list(gpu.gpus),
            "ratio": gpu.ratio,
            "job_id": gpu.job_id,
            "seen_at": gpu.seen_at,
            "until_at": gpu.until_at,
        }
        for gpu in reply.slow_gpus
    ]
    lending = loans.lending_as_json(reply.lending) if reply.HasField("lending") else None
    return {**plain, "slow_gpus": slow, "lending": lending}


def _point_as_json(point: admin_pb2.ScalingPoint) -> dict[str, Json]:
    return {
        "workers": point.workers,
        "samples_per_s": point.samples_per_s or None,
        "step_s": point.step_s,
        "sync_s": point.sync_s,
        "efficiency": point.efficiency,
        "batches": point.batches,
        "measured_at": point.measured_at,
    }


def _events_as_json(reply: admin_pb2.ExplainJobReply) -> list[Json]:
    return [{"at": event.at, "kind": event.kind, "text": event.text} for event in reply.events]


def _print_events(found: Iterable[admin_pb2.Event]) -> None:
    print_table(("TIME", "EVENT", "WHAT"), [(clock(event.at), event.kind, event.text) for event in found])
