"""`flexo wait`: until when it waits, what it ends with, and what it does while flexod is away."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from admin_server import serving
from busy_flexod import BusyFlexod, job
from command_line import Run

from flexo_cli import waiting
from flexo_protos.v1 import admin_pb2 as pb


class EndingFlexod(BusyFlexod):
    """Knows one job, 7, and shows the next of `course` each time that it is asked for its jobs."""

    def __init__(self) -> None:
        super().__init__(jobs=0)
        self.course: list[pb.ElasticJob | pb.ExplainJobReply | str | None] = []
        """A running job, an explanation of a job that does not run, "unknown", or None: flexod is away."""

    def ListJobs(self, request, context):  # noqa: N802
        now = self.course[0]
        if now is None:
            self.course.pop(0)
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a while")
        return pb.ListJobsReply(jobs=[self.course.pop(0)] if isinstance(now, pb.ElasticJob) else [])

    def ExplainJob(self, request, context):  # noqa: N802
        now = self.course.pop(0) if len(self.course) > 1 else self.course[0]
        if now == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no elastic job {request.job_id}")
        return now


PENDING = pb.ExplainJobReply(headline="0 of 2-8 workers: pending (Priority)", sentences=["it waits"])
GONE = pb.ExplainJobReply(sentences=["job 7 is not in the queue"])


def ended(state: str, code: str) -> pb.ExplainJobReply:
    return pb.ExplainJobReply(
        sentences=[f"the job ended: {state}"], end=pb.JobEnd(state=state, exit_code=code, ended_at=9.0)
    )


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndingFlexod]:
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    service = EndingFlexod()
    with serving(service, monkeypatch):
        yield service


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("FAILED", "0:9", 137),
        ("TIMEOUT", "0:0", 1),
        ("CANCELLED", "0:15", 143),
        ("", "", 1),
    ],
)
def test_the_exit_code_is_the_job_s(
    flexod: EndingFlexod, flexo_run: Run, state: str, said: str, code: int
) -> None:
    flexod.course = [PENDING, job(7), ended(state, said)]
    found, out, err = flexo_run("wait", "7")
    assert (found, err) == (code, "")
    assert state in out


def test_a_job_that_is_requeued_has_not_ended(flexod: EndingFlexod, flexo_run: Run) -> None:
    flexod.course = [job(7), ended("REQUEUED", "0:0"), PENDING, job(7), ended("COMPLETED", "0:0")]
    assert flexo_run("wait", "7")[0] == 0
    assert len(flexod.course) == 1


def test_it_waits_for_a_number_of_workers(flexod: EndingFlexod, flexo_run: Run) -> None:
    flexod.course = [PENDING, job(7), job(7, workers=6), ended("COMPLETED", "0:0")]
    code, out, _ = flexo_run("wait", "7", "--for=workers=5", "--json")
    assert (code, json.loads(out)) == (0, {"job_id": 7, "workers": 6, "end": None})
    flexod.course = [PENDING, job(7)]
    assert flexo_run("wait", "7", "--for", "start")[0] == 0


def test_a_job_that_ends_before_it_has_the_workers_is_a_failure(flexod: EndingFlexod, flexo_run: Run) -> None:
    flexod.course = [job(7), ended("COMPLETED", "0:0")]
    assert flexo_run("wait", "7", "--for=workers=5")[0] == 1


def test_it_goes_on_while_flexod_is_away_and_says_so_once(flexod: EndingFlexod, flexo_run: Run) -> None:
    flexod.course = [job(7), None, None, ended("COMPLETED", "0:0")]
    code, _, err = flexo_run("wait", "7")
    assert (code, err.count("\n")) == (0, 1)
    assert "waiting" in err


def test_the_time_may_be_limited(flexod: EndingFlexod, flexo_run: Run) -> None:
    flexod.course = [PENDING]
    code, out, err = flexo_run("wait", "7", "--timeout", "0.05s")
    assert (code, out) == (124, "")
    assert "--timeout" in err


def test_an_end_that_flexod_never_learns_is_refused(
    flexod: EndingFlexod, flexo_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "KNOWN_WITHIN_S", 0.02)
    flexod.course = [GONE]
    code, _, err = flexo_run("wait", "7")
    assert code == 1
    assert "no news of job 7" in err


def test_a_job_that_flexod_has_not_seen_yet_is_waited_for(
    flexod: EndingFlexod, flexo_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "has_no_job", lambda _: False)
    flexod.course = ["unknown", "unknown", job(7), "unknown", ended("COMPLETED", "0:0")]
    code, _, err = flexo_run("wait", "7")
    assert code == 0
    assert "no elastic job 7" in err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("says", "refused"), [("Invalid job id specified", True), ("Unable to contact", False)]
)
def test_a_job_that_slurm_does_not_know_either_is_refused_at_once(
    flexod: EndingFlexod,
    flexo_run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    says: str,
    refused: bool,
) -> None:
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho 'slurm_load_jobs error: {says}' >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    flexod.course = ["unknown", job(7), ended("COMPLETED", "0:0")]
    code, _, err = flexo_run("wait", "7")
    assert code == int(refused)
    assert ("Slurm has no job 7" in err) == refused


@pytest.mark.parametrize("line", [["--for", "workers=0"], ["--for", "luck"], ["--timeout", "soon"]])
def test_a_wrong_goal_or_time_is_a_usage_error(flexo_run: Run, line: list[str]) -> None:
    assert flexo_run("wait", "7", *line)[0] == 2
