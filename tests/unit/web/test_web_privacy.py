"""Where the cluster hides users' jobs from each other, the pages do so, too."""

from __future__ import annotations

import time

import pytest
from flexod_double import NOW, UID, FlexodDouble, event, job
from signed_in import Browser, until

from flexo_protos.v1 import admin_pb2 as pb

VIEWER = str(UID)
"""The viewer's account has no name, so that its jobs are those of its number."""
PAGES = ("/", "/mine", "/loans", "/sharing", "/value", "/jobs/18", "/jobs/9", "/events/3", "/value.csv")


@pytest.fixture
def private(flexod: FlexodDouble) -> FlexodDouble:
    """A cluster with PrivateData=jobs: job 17 is the viewer's, others are trudy's."""
    flexod.status.privacy.jobs = True
    pair = pb.SharedGpuView(node="t1", gpu=0, holder=17, guest=18, utilization=0.5, slowdown=0.02)
    why = "4 of 8 workers: job 31 (pending, trudy) is about to start on t3"
    flexod.jobs = [
        job(17, VIEWER, account="own", reasons=[why], shared_gpus=[pair]),
        job(
            18,
            "trudy",
            account="secret",
            name="trudys-run",
            reasons=["4 of 8 workers: no idle GPU on t1"],
        ),
    ]
    flexod.waiting = [pb.WaitingJob(job_id=31, user="trudy", min=2, max=2, reason="Resources")]
    flexod.nodes[2].unusable = "held exclusively by job 18"
    flexod.loans = pb.ListLoansReply(
        lending=True, loans=[pb.LoanView(node="t3", state="lent", since_at=NOW, why="idle", bases=[18])]
    )
    begin = time.time() - 3600
    flexod.events = [
        event(begin, "grow", "grow by 2 workers on t2: x", "t2", 2, True, number=1, job_id=17),
        event(begin, "grow", "grow by 2 workers on t4: hers", "t4", 2, True, number=2, job_id=18),
        event(begin, "preempt", "base 18 of trudy is preempted", number=3, job_id=0),
    ]
    for number in (9, 18):
        flexod.explained[number] = pb.ExplainJobReply(
            user="trudy",
            sentences=[f"job {number} (trudy) ended"],
            end=pb.JobEnd(state="FAILED", user="trudy", ended_at=NOW),
        )
    flexod.explained[17] = pb.ExplainJobReply(sentences=[f"job 17 ({VIEWER}) of 2-8 workers", why])
    return flexod


@pytest.mark.parametrize("path", PAGES)
def test_nothing_of_another_user_s_job_is_on_any_page(
    private: FlexodDouble, browser: Browser, path: str
) -> None:
    text = browser(UID).get(path).text
    for word in ("trudy", "trudys-run", "secret", 'href="/jobs/18"', "by job 18", "job-18"):
        assert word not in text
    assert private.asked["ListJobs"]


def test_numbers_of_others_jobs_are_neither_in_events_nor_in_flexods_trouble(
    private: FlexodDouble, browser: Browser
) -> None:
    private.status.trouble = "flexod cannot read the record of job 41"
    order = "sets the priority of pending jobs, by the policy's order: 4711, 4712"
    private.events = [event(NOW, "order", order, number=1, job_id=0)]
    visitor = browser(UID)
    assert "4711" not in visitor.get("/events/1").text
    text = visitor.get("/").text
    assert "flexod cannot read the record of a job" in text
    assert "job 41" not in text


def test_another_users_job_that_waits_is_not_named_where_gpus_are_idle(
    private: FlexodDouble, browser: Browser
) -> None:
    private.jobs = []
    private.waiting[0].place = 1
    assert "job 31 starts with" in browser(0).get("/").text
    text = browser(UID).get("/").text
    assert "jobs wait" in text
    assert "job 31" not in text
    assert "/jobs/31" not in text


def test_own_jobs_are_shown_with_their_reasons(private: FlexodDouble, browser: Browser) -> None:
    user = browser(UID)
    assert 'id="job-17"' in user.get("/").text
    assert "job 31 is about to start on t3" in user.get("/jobs/17").text
    assert "another user's job" in user.get("/sharing").text
    assert private.asked["ExplainJob"]


def test_whether_another_user_s_job_exists_is_not_told(private: FlexodDouble, browser: Browser) -> None:
    user = browser(UID)
    answers = [user.get(f"/jobs/{number}") for number in (18, 9, 5)]
    assert {answer.status_code for answer in answers} == {404}
    assert all(f"Job {number} is not in the queue" in answer.text
               for number, answer in zip((18, 9, 5), answers, strict=True))  # fmt: skip
    assert private.asked["ExplainJob"]


def test_gpu_hours_of_other_users_are_one_sum(private: FlexodDouble, browser: Browser) -> None:
    text = browser(UID).get("/value.csv").text
    assert ",own," in text
    assert ",jobs of other users," in text
    assert private.asked["ListEvents"]


def test_root_sees_all_and_elsewhere_everybody_does(private: FlexodDouble, browser: Browser) -> None:
    assert "trudys-run" in browser(0).get("/").text
    private.status.privacy.jobs = False
    user = browser(UID)
    until(lambda: "held exclusively by job 18" in user.get("/").text)
