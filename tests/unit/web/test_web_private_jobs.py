"""Where the cluster hides jobs, a viewer's pages show that user's own jobs, and others' like none."""

from __future__ import annotations

import pwd

import pytest
from flexod_double import NOW, FlexodDouble, event, job
from signed_in import Browser

from flexo_protos.v1 import admin_pb2 as pb

GAMES, NEWS = (pwd.getpwnam(name).pw_uid for name in ("games", "news"))
"""Accounts that every Debian has."""
SECRET = "t2 goes to another job"


@pytest.fixture
def hiding(flexod: FlexodDouble) -> FlexodDouble:
    """17 and 30 are those of games, 18 and 31 those of news, who alone is a reader."""
    flexod.status.privacy.CopyFrom(pb.Privacy(jobs=True, readers=["root", "news"]))
    flexod.jobs = [job(17, "games"), job(18, "bob")]
    flexod.waiting = [
        pb.WaitingJob(job_id=30, user="games", min=1, max=2, reason="Resources", submitted_at=NOW),
        pb.WaitingJob(job_id=31, user="bob", min=1, max=2, reason="Resources", submitted_at=NOW),
    ]
    flexod.order = [31, 30]
    flexod.explained = {
        17: pb.ExplainJobReply(user="games", sentences=["no idle GPU is left"]),
        18: pb.ExplainJobReply(user="bob", sentences=[SECRET], events=[event(NOW, "grow", SECRET)]),
        6: pb.ExplainJobReply(user="bob", sentences=[SECRET]),
        5: pb.ExplainJobReply(sentences=[SECRET]),
    }
    return flexod


@pytest.mark.usefixtures("hiding")
def test_a_viewer_sees_own_jobs_alone_on_every_page(browser: Browser) -> None:
    entered = browser(GAMES)
    for path in ("/", "/mine", "/jobs/17"):
        text = entered.get(path).text
        assert "bob" not in text, path
        assert "/jobs/18" not in text, path
        assert "/jobs/31" not in text, path
    assert 'id="job-17"' in entered.get("/").text
    assert "no idle GPU is left" in entered.get("/jobs/17").text


@pytest.mark.usefixtures("hiding")
def test_another_users_job_is_shown_exactly_like_one_that_there_is_not(browser: Browser) -> None:
    entered = browser(GAMES)
    missing = entered.get("/jobs/999")
    for other in (18, 6, 5):  # runs, has ended, nobody knows whose it was
        shown = entered.get(f"/jobs/{other}")
        assert shown.status_code == missing.status_code == 404
        assert shown.text == missing.text.replace("999", str(other))


@pytest.mark.parametrize(("uid", "status"), [(GAMES, 200), (0, 200)])
def test_the_owner_of_a_job_that_is_not_elastic_reads_its_reason(
    hiding: FlexodDouble, browser: Browser, uid: int, status: int
) -> None:
    hiding.explained[4] = pb.ExplainJobReply(user="games", sentences=["it waits for its turn (Priority)"])
    answer = browser(uid).get("/jobs/4")
    assert answer.status_code == status
    assert "(Priority)" in answer.text


@pytest.mark.usefixtures("hiding")
@pytest.mark.parametrize("uid", [0, NEWS])
def test_root_and_readers_see_all_jobs(browser: Browser, uid: int) -> None:
    entered = browser(uid)
    assert 'id="job-18"' in entered.get("/").text
    assert SECRET in entered.get("/jobs/18").text


def test_what_one_viewer_sees_is_not_kept_for_the_next(hiding: FlexodDouble, browser: Browser) -> None:
    assert 'id="job-18"' in browser(NEWS).get("/").text
    assert 'id="job-18"' not in browser(GAMES).get("/").text
    hiding.status.privacy.CopyFrom(pb.Privacy())
    assert 'id="job-17"' in browser(GAMES).get("/").text


def test_where_nodes_are_hidden_no_page_shows_one(hiding: FlexodDouble, browser: Browser) -> None:
    hiding.status.privacy.CopyFrom(pb.Privacy(nodes=True, readers=["news"]))
    assert ">t3<" not in browser(GAMES).get("/").text
    assert ">t3<" in browser(NEWS).get("/").text


def test_a_flexo_web_that_is_told_nothing_says_what_the_administrator_must_do(
    hiding: FlexodDouble, browser: Browser
) -> None:
    hiding.status.privacy.CopyFrom(pb.Privacy(jobs=True, restricted=True))
    hiding.jobs, hiding.waiting = [], []
    assert "[service] readers" in browser(GAMES).get("/").text
