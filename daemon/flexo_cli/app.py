"""The commands that read and steer flexod, and the page that `flexo --help` prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

import flexo
from flexo_cli import (
    check,
    completion,
    delegate,
    doctor,
    events,
    flexods,
    forecast,
    job_words,
    jobs,
    lab,
    loans,
    simulate,
    top,
    web,
    whatif,
    yarn,
)
from flexo_cli.as_json import end_as_json, event_as_json, point_as_json, status_as_json
from flexo_cli.connection import Busy, Daemon, Refusal, Unreachable, find_address
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import ago, clock, complain, print_json, print_line, print_pairs, print_table
from flexo_protos.v1 import admin_pb2

RETRY_S = 2.0

_T = TypeVar("_T")

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="While the job is being resized or profiled, try again until it is not."),
]

app = typer.Typer(
    name="flexo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lab.app, name="lab")
app.add_typer(yarn.app, name="yarn")


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"flexo {flexo.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print flexo's version.")
    ] = False,
) -> None:
    """Elastic deep learning on Slurm: running jobs grow into idle GPUs and give them back."""


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
    """Show flexod's status: what it sees and does."""
    reply = Daemon(find_address(daemon)).status()
    beside = flexods.each_of(reply.availability.hosts)
    if as_json:
        print_json(status_as_json(reply, beside))
        return
    print_pairs(
        [
            ("flexod", f"{reply.flexod_version}, up for {ago(reply.started_at)}"),
            *(("flexods", each.sentence()) for each in beside),
            ("cluster", f"{reply.cluster}, {reply.software or 'Slurm'} {reply.slurm_version}"),
            ("policy", reply.policy + (" (dry run: decides, changes nothing)" if reply.dry_run else "")),
            ("last look", job_words.last_look(reply)),
            ("GPUs", job_words.gpus(reply)),
            ("elastic jobs", f"{reply.elastic_jobs}, {reply.leaders} with a leader attached"),
            *((("loans", loans.lending_line(reply.lending)),) if reply.HasField("lending") else ()),
            *((("pool", job_words.pool(reply.pool)),) if reply.HasField("pool") else ()),
            *(("slow GPU", job_words.slow_gpu(gpu)) for gpu in reply.slow_gpus),
            *job_words.unknown_satellites(reply),
            ("trouble", reply.trouble or "none"),
        ]
    )


@app.command()
def why(job: JobArgument, daemon: DaemonOption = None, as_json: JsonOption = False) -> None:
    """Why a job has the workers that it has, and what happened to it last."""
    reply = Daemon(find_address(daemon)).explain(job)
    if as_json:
        told = [event_as_json(event) for event in reply.events]
        end = end_as_json(reply.end) if reply.HasField("end") else None
        said = {"headline": reply.headline or None, "sentences": list(reply.sentences)}
        print_json({"job_id": job, **said, "end": end, "events": told})
        return
    if reply.headline:
        print_line(reply.headline)
        print_line("")
    elif reply.end.ended_at:
        how = reply.end.state or "ended"
        print_line(f"{how}: {ago(reply.end.ended_at)} ago, at {clock(reply.end.ended_at)}")
    for sentence in reply.sentences or ["flexod has nothing to say of this job yet"]:
        print_line(sentence)
    if reply.events:
        print_line("")
        events.print_table_of(reply.events[:10], with_job=False)


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
        print_json({"job_id": job, "left_out": last.text, "points": [point_as_json(p) for p in last.points]})
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


app.command(context_settings={"ignore_unknown_options": True})(check.check)  # they are the script's
app.command()(doctor.doctor)
app.command()(completion.completion)
app.command()(events.events)
app.command()(jobs.jobs)
app.command()(top.top)
app.command()(web.web)
app.command()(loans.loans)
app.command()(forecast.forecast)
app.command(cls=simulate.JsonCommand)(simulate.simulate)
app.command(cls=simulate.JsonCommand)(whatif.whatif)


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("run", context_settings=_PASSED_ON)
def run_script(context: typer.Context) -> None:
    """Inside a job: train elastically (flexo run torchrun train.py ..., flexo run python train.py ...)."""
    raise typer.Exit(delegate("run", context.args))


@app.command(context_settings=_PASSED_ON)
def hosts(context: typer.Context) -> None:
    """Inside a job: print its hosts and slots, as horovodrun's discovery script does."""
    raise typer.Exit(delegate("hosts", context.args))


@app.command(context_settings=_PASSED_ON)
def share(context: typer.Context) -> None:
    """Share one GPU between a job that keeps its speed and one that gets what is left."""
    raise typer.Exit(delegate("share", context.args))


@app.command(context_settings=_PASSED_ON)
def aggregator(context: typer.Context) -> None:
    """Sum gradients of several jobs in this process, which flexod assigns to it (a pool's Aggregator)."""
    raise typer.Exit(delegate("aggregator", context.args))


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
    """Print flexod's answer."""
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


def _workers(text: str) -> int:
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise typer.BadParameter(
            f"'{text}' is neither a number of workers from 1 nor auto", param_hint="N|auto"
        )
    return int(text)
