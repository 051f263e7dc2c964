"""Waits until a job has ended, or has so many workers: for `flexo wait`, and for Python programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from flexo_cli.connection import Daemon, NoSuchJob, Refusal, Unreachable, find_address
from flexo_protos.v1 import admin_pb2
from horovod_elastic.platforms.slurm.submission import has_no_job, is_slurms

LOOK_EVERY_S = 2.0
KNOWN_WITHIN_S = 60.0
"""How long flexod may take to see a new job, and to learn how a job ended that has left the queue."""
_COMPLETED: Final = "COMPLETED"
_REQUEUED: Final = frozenset({"REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""Ends of one run of a job that runs again."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is waited for: the job's end, or, with `workers`, that this number of workers trains."""

    workers: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the job."""

    sentence: str
    workers: int = 0
    here: bool = False
    """Whether the job waits or runs."""
    unknown: bool = False
    """Whether flexod knows no such job."""
    end: admin_pb2.JobEnd | None = None
    """How it ended, once that is known."""


def exit_code(end: admin_pb2.JobEnd) -> int:
    """The job's exit code, as a shell would have it: 128 + n for a signal n, never 0 unless it completed."""
    status, _, signal = end.exit_code.partition(":")
    if signal.isdecimal() and int(signal):
        return 128 + int(signal) % 128
    code = int(status) % 256 if status.isdecimal() else 0
    return code if code or end.state == _COMPLETED else 1


def reached(
    daemon: str | None, job: int, goal: Goal, timeout_s: float | None, say: Callable[[str], None]
) -> Seen:
    """Look again and again until `goal` is reached or the job has ended.

    `daemon`: flexod's address; None: the one of the configuration. `timeout_s` None: for ever. `say` gets a
    sentence when flexod is away, or knows nothing of the job yet. Raises TimeoutError, Refusal, and
    Unreachable if flexod is away at the first look.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    unknown_since: float | None = None
    for seen in _looks(daemon, job, say):
        if seen is not None and (seen.end or (goal.workers and seen.workers >= goal.workers)):
            return seen
        now = time.monotonic()
        if seen is not None and not seen.here:
            if unknown_since is None:
                if seen.unknown and is_slurms(job) and has_no_job(job):
                    raise Refusal(f"{seen.sentence}, and Slurm has no job {job}")
                unknown_since = now
                say(f"{seen.sentence}; waiting for news of it")
            elif now - unknown_since > KNOWN_WITHIN_S:
                raise Refusal(f"flexod has had no news of job {job} for {KNOWN_WITHIN_S:.0f} s")
        elif seen is not None:
            unknown_since = None
        if until is not None and now >= until:
            raise TimeoutError(f"job {job} is not there yet after {timeout_s:g} s")
    raise AssertionError("looks have no end")


def _looks(daemon: str | None, job: int, say: Callable[[str], None]) -> Iterator[Seen | None]:
    """Look every two seconds. None: flexod is away. Raises Unreachable if it is away at the first look."""
    flexod, away = Daemon(find_address(daemon)), ""
    yield _look(flexod, job)
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            seen = _look(flexod, job)
        except Unreachable as error:
            if not away:
                say(f"{error}; waiting for it")
            away, flexod = str(error), Daemon(find_address(daemon))
            yield None
            continue
        away = ""
        yield seen


def _look(flexod: Daemon, job: int) -> Seen:
    """Ask flexod once."""
    running = flexod.running_job(job)
    if running is not None:
        sentence = f"job {job} trains with {running.workers} of {running.min}-{running.max} workers"
        return Seen(sentence, running.workers, here=True)
    try:
        reply = flexod.explain(job)
    except NoSuchJob as error:
        return Seen(str(error), unknown=True)
    ended = reply.HasField("end") and reply.end.state not in _REQUEUED
    sentence = reply.sentences[0] if reply.sentences else f"job {job} has ended"
    return Seen(sentence, here=bool(reply.headline), end=reply.end if ended else None)
