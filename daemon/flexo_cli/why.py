"""`flexo why`: prints why a job has its size, in one line and then in sentences."""

from __future__ import annotations

from typing import Final

from flexo_cli import events
from flexo_cli.as_json import end_as_json, event_as_json
from flexo_cli.connection import Daemon, find_address
from flexo_cli.options import DaemonOption, JobArgument, JsonOption
from flexo_cli.output import ago, clock, print_json, print_line

_FAILED: Final = "FAILED"
"""The state of a job whose own script ended with an error."""


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
    elif reply.end.ended_at:
        how = reply.end.state or "ended"
        print_line(f"{how}: {ago(reply.end.ended_at)} ago, at {clock(reply.end.ended_at)}")
    for sentence in reply.sentences or ["flexod has nothing to say of this job yet"]:
        print_line(sentence)
    if reply.end.state == _FAILED:
        print_line(f"its output says why, if Slurm still knows the job: flexo logs {job} -n 50")
    if reply.events:
        print_line("")
        events.print_table_of(reply.events[:10], with_job=False)
