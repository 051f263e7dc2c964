"""The commands that steer one job: `flexo scale`, `flexo profile` and `flexo checkpoint`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from flexo_cli.as_json import point_as_json
from flexo_cli.connection import Busy, Daemon, find_address
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import complain, print_json, print_line, print_table
from flexo_cli.sizes import BadSize, Size, scaled
from flexo_protos.v1 import admin_pb2

RETRY_S = 2.0

_T = TypeVar("_T")

WaitOption = Annotated[
    bool,
    typer.Option("--wait", help="While the job is being resized or profiled, try again until it is not."),
]


def scale(
    job: JobArgument,
    size: Annotated[
        str,
        typer.Argument(
            metavar="N|+N|-N|auto",
            help="At most N workers; N more, or fewer, than now; or auto: as many as the range allows.",
        ),
    ] = "",
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="With +N: grow there only. Instead of a size: the satellite there goes. May be repeated.",
        ),
    ] = None,
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change a job's size. Its owner and administrators may.

    Every size is a limit from then on, until `flexo scale JOB auto` removes it. Whole satellites go, so that
    a job may have fewer workers than you say. +N is granted as soon as GPUs are idle. Nodes with +N stand
    until the next size.
    """
    if not size and not node:
        raise typer.BadParameter(
            f"say a size or --node: flexo scale {job} 4, flexo scale {job} -2, flexo scale {job} auto",
            param_hint="N|+N|-N|auto",
        )
    asked = _size(size) if size else None
    flexod = Daemon(find_address(daemon))
    _print_answer(job, _patiently(lambda: _scaled(flexod, job, asked, node or []).text, wait), as_json)


def _size(text: str) -> Size:
    try:
        return Size.parse(text)
    except BadSize as error:
        raise typer.BadParameter(str(error), param_hint="N|+N|-N|auto") from None


def _scaled(flexod: Daemon, job: int, size: Size | None, nodes: Sequence[str]) -> admin_pb2.ScaleJobReply:
    """Ask flexod for `size`, or, without one, for the satellites on `nodes` to go."""
    if size is None:
        return flexod.scale_in(job, 0, nodes)
    try:
        return scaled(flexod, job, size, nodes)
    except BadSize as error:
        raise typer.BadParameter(str(error), param_hint="--node") from None


def scale_out(
    job: JobArgument,
    workers: Annotated[int, typer.Argument(metavar="N", min=1, help="How many workers more.")],
    daemon: DaemonOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
) -> None:
    """The name of `flexo scale JOB +N` until 0.1, kept for one release."""
    _say_new_name("scale-out", f"flexo scale {job} +{workers}")
    scale(job, f"+{workers}", None, daemon, wait, as_json)


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
    """The name of `flexo scale JOB -N` until 0.1, kept for one release."""
    _say_new_name("scale-in", f"flexo scale {job} {f'--node {node}' if node else f'-{workers or 1}'}")
    scale(job, f"-{workers}" if workers else "", [node] if node else None, daemon, wait, as_json)


def _say_new_name(old: str, new: str) -> None:
    complain(f"flexo {old} goes with the next release; say: {new}")


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
