"""The commands that read and steer flexod, and the page that `flexo --help` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

import flexo
from flexo.cli import delegate, lab
from flexo.cli.connection import Daemon, Refusal, Unreachable, find_address
from flexo.cli.output import (
    Json,
    ago,
    clock,
    complain,
    print_json,
    print_line,
    print_pairs,
    print_table,
)
from flexo_protos.v1 import admin_pb2

_TRAINING = "training"
REFUSED = 1
UNREACHABLE = 3

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
    try:
        app(arguments, prog_name="flexo")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else REFUSED
    except Refusal as error:
        complain(str(error))
        return REFUSED
    except Unreachable as error:
        complain(str(error))
        return UNREACHABLE
    return 0


@app.command()
def status(daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """What flexod sees and does at large."""
    reply = Daemon(find_address(daemon)).status()
    if as_json:
        print_json({key.name: getattr(reply, key.name) for key in reply.DESCRIPTOR.fields})
        return
    print_pairs(
        [
            ("flexod", f"{reply.flexod_version}, up for {ago(reply.started_at)}"),
            ("cluster", f"{reply.cluster}, Slurm {reply.slurm_version}"),
            ("policy", reply.policy + (" (dry run: decides, changes nothing)" if reply.dry_run else "")),
            ("last look", _last_look(reply)),
            ("GPUs", _gpus(reply)),
            ("elastic jobs", f"{reply.elastic_jobs}, {reply.leaders} with a leader attached"),
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
        ("JOB", "USER", "RANGE", "CAP", "WORKERS", "GRANTED", "STATE", "NODES"),
        [
            (
                _job_name(job),
                job.user,
                f"{job.min}-{job.max}",
                str(job.wanted) if job.wanted else "",
                str(job.workers),
                str(job.granted),
                _job_state(job),
                _nodes(job),
            )
            for job in reply.jobs
        ],
        right=("WORKERS", "GRANTED", "CAP"),
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
) -> None:
    """Cap a job at N workers. Its owner and administrators may."""
    print_line(Daemon(find_address(daemon)).scale(job, _workers(workers)).text)


@app.command()
def version() -> None:
    """Print flexo's version."""
    print_line(f"flexo {flexo.__version__}")


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("run", context_settings=_PASSED_ON)
def run_script(context: typer.Context) -> None:
    """Inside a job: train elastically (flexo run python train.py ...)."""
    raise typer.Exit(delegate("run", context.args))


@app.command(context_settings=_PASSED_ON)
def hosts(context: typer.Context) -> None:
    """Inside a job: print its hosts and slots, as horovodrun's discovery script does."""
    raise typer.Exit(delegate("hosts", context.args))


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
    if not job.scalable:
        return "starting"
    moving = [grant for grant in job.grants if grant.state != _TRAINING]
    return "resizing" if moving else "training"


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


def _events_as_json(reply: admin_pb2.ExplainJobReply) -> list[Json]:
    return [{"at": event.at, "kind": event.kind, "text": event.text} for event in reply.events]


def _print_events(found: Iterable[admin_pb2.Event]) -> None:
    print_table(("TIME", "EVENT", "WHAT"), [(clock(event.at), event.kind, event.text) for event in found])
