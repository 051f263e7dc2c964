"""What the pages say, and that nothing that users chose is taken for markup."""

from __future__ import annotations

import html
from urllib.parse import quote

import pytest
from flexod_double import NOW, UID, FlexodDouble, event, job
from signed_in import Browser
from starlette.testclient import TestClient

from flexo_protos.v1 import admin_pb2 as pb
from flexo_web import pages

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(2)>'{{ 7 * 7 }}\u202egpj"


def test_the_cluster_s_page_has_gpus_by_node_and_jobs_with_size_range_and_reason(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17), job(18, "bob", granted=6, reasons=["t3 is kept for pending job 4711"])]
    flexod.nodes[2].unusable = "DOWN: fan"
    text = browser().get("/").text
    assert "lab, Slurm 22.05.8" in text
    assert "0 GPUs in use, 2 in satellites, 2 idle" in text  # t2
    assert "3 GPUs in use, 0 in satellites, 1 unusable" in text
    assert "DOWN: fan" in text
    assert "4 train, 6 are granted" in text
    assert "t3 is kept for pending job 4711" in text
    assert text.index('id="job-17"') < text.index('id="job-18"')


def test_the_first_page_says_that_its_numbers_of_jobs_are_of_elastic_ones_and_what_an_arrow_is(
    flexod: FlexodDouble, browser: Browser
) -> None:
    """`Waiting 0` read as if nothing waited, while an ordinary job did."""
    flexod.jobs = [job(18, granted=6)]
    text = browser().get("/").text
    assert "<dt>Elastic jobs running</dt>" in text
    assert "<dt>Elastic jobs waiting</dt>" in text
    assert "1>2: one worker trains, two are granted" in html.unescape(text)


def test_a_job_that_waits_is_shown_with_the_name_that_its_user_chose(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.waiting = [pb.WaitingJob(job_id=30, user="ada", name="resnet", min=2, max=4, reason="Resources")]
    text = browser().get("/mine").text
    assert "resnet" in text[text.index('id="job-30"') :]
    assert "<code>--elastic</code>" in text


def test_a_server_on_loan_is_named_with_the_state_of_its_loan(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.loans = pb.ListLoansReply(lending=True, loans=[pb.LoanView(node="t3", state="called back")])
    assert browser().get("/").text.count("on loan: called back") == 1


def test_jobs_that_change_their_size_come_first(flexod: FlexodDouble, browser: Browser) -> None:
    moving = pb.GrantView(node="t3", workers=2, state="warming")
    flexod.jobs = [job(17), job(18, granted=6, grants=[moving])]
    text = browser().get("/").text
    assert text.index('id="job-18"') < text.index('id="job-17"')


def test_jobs_beyond_what_a_page_holds_are_counted(
    flexod: FlexodDouble, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_ROWS", 2)
    flexod.jobs = [job(number) for number in range(1, 6)]
    assert "3 more jobs are not shown" in browser().get("/").text


def test_a_viewer_s_own_page_has_his_jobs_and_those_that_wait_in_the_policy_s_order(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, "root"), job(18, "ada")]
    flexod.waiting = [
        pb.WaitingJob(
            job_id=30, user="ada", min=2, max=4, reason="JobHeldUser", waits_for="held", submitted_at=NOW
        ),
        pb.WaitingJob(job_id=31, user="ada", min=8, max=8, reason="Resources", submitted_at=NOW + 1, place=2),
        pb.WaitingJob(job_id=32, user="root", min=1, max=4, reason="Resources", submitted_at=NOW, place=1),
    ]
    text = browser(0).get("/mine").text
    assert 'id="job-17"' in text
    assert 'id="job-18"' not in text
    assert (
        text.index('id="job-32"')
        < text.index("Others")
        < text.index('id="job-31"')
        < text.index('id="job-30"')
    )
    assert "held (JobHeldUser)" in text
    assert ">8 workers<" in text
    assert ">1 worker<" in text


def test_a_job_s_page_has_its_reasons_its_sizes_and_the_sentence_of_each_step(
    flexod: FlexodDouble, browser: Browser
) -> None:
    grown = event(NOW, "grow", "grow by 2 workers on t2: t2 is idle", "t2", 2, True)
    flexod.explained[17] = pb.ExplainJobReply(sentences=["no idle GPU is left"], events=[grown])
    text = browser().get("/jobs/17").text
    assert "no idle GPU is left" in text
    assert "from 2 to 4" in text
    assert "t2 is idle" in text
    assert 'href="#event-0"' in text
    assert 'id="event-0"' in text


def test_events_of_the_run_before_a_requeue_are_left_out(flexod: FlexodDouble, browser: Browser) -> None:
    old = pb.Event(at=NOW, kind="grow", text="of the first run", job_id=17)
    flexod.explained[17] = pb.ExplainJobReply(
        events=[pb.Event(at=NOW + 9, kind="scale", text="of the second run", job_id=17, restart_count=1), old]
    )
    flexod.jobs = [job(17, restart_count=1)]
    text = browser().get("/jobs/17").text
    assert "of the second run" in text
    assert "of the first run" not in text


def test_a_job_that_has_ended_keeps_its_sizes(flexod: FlexodDouble, browser: Browser) -> None:
    events = [
        event(NOW + 60, "end", "the job ended: TIMEOUT"),
        event(NOW, "grow", "grow by 2 workers on t2: x", "t2", 2, True),
    ]
    end = pb.JobEnd(state="TIMEOUT", started_at=NOW - 60, ended_at=NOW + 60, base_workers=3, most_workers=5)
    flexod.explained[9] = pb.ExplainJobReply(sentences=["the job ended: TIMEOUT"], events=events, end=end)
    text = browser().get("/jobs/9").text
    assert "It ended at" in text
    assert "from 3 to 5" in text
    assert "<svg" in text


def test_a_job_that_flexod_does_not_know_is_not_found_with_flexod_s_sentence(browser: Browser) -> None:
    answer = browser().get("/jobs/5")
    assert answer.status_code == 404
    assert "Job 5 is not in the queue" in answer.text


def test_a_job_that_is_not_elastic_has_a_page_with_its_reason_and_no_history(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.explained[5] = pb.ExplainJobReply(
        user="ada",
        sentences=["job 5 is not elastic", "it waits for its turn (Priority): it needs 9 GPUs", "t2 is idle"],
    )
    answer = browser().get("/jobs/5")
    assert answer.status_code == 200
    assert "<li>Job 5 is not elastic</li>" in answer.text
    assert "<li>It waits for its turn (Priority): it needs 9 GPUs</li>" in answer.text
    assert "<li>t2 is idle</li>" in answer.text, "a node's name stays as it is"
    assert "recorded nothing" not in answer.text
    assert "What happened" not in answer.text


@pytest.mark.parametrize("base", ["1", "1.r2"])
def test_the_page_of_a_satellite_links_to_its_job_and_says_nothing_else(
    flexod: FlexodDouble, browser: Browser, base: str
) -> None:
    flexod.explained[2] = pb.ExplainJobReply(
        sentences=[f"job 2 is a satellite of job {base}; ask about that one"], satellite_of=1
    )
    text = browser().get("/jobs/2").text
    assert '<a href="/jobs/1">job 1</a>' in text
    assert "ask about that one" not in text
    assert "recorded nothing" not in text


def test_a_long_name_is_one_line_in_a_list_and_whole_in_its_title(
    flexod: FlexodDouble, browser: Browser
) -> None:
    """A name of 900 letters made a row ten lines high for everybody."""
    long = "a" * 255
    flexod.jobs = [job(17, long, account=long, name=long)]
    flexod.waiting = [pb.WaitingJob(job_id=31, user=long, name=long, min=1, max=1)]
    user = browser()
    assert user.get("/").text.count(f'title="{long}">{long}</span>') == 3
    assert user.get("/mine").text.count(f'title="{long}">{long}</span>') == 2
    style = user.get("/static/web.css").text
    rule = style[style.index("\n.cut {") :].partition("}")[0]
    assert "ellipsis" in rule
    assert "nowrap" in rule


def test_own_waiting_jobs_say_what_they_need_where_they_are_listed(
    flexod: FlexodDouble, browser: Browser
) -> None:
    """Mine had (Resources) alone, and only the job's page the sentence that helps."""
    needs = "for resources (Resources): it needs 8 GPUs, and 2 are idle in partition train"
    flexod.waiting = [
        pb.WaitingJob(
            job_id=number,
            user=user,
            min=8,
            max=8,
            reason="Resources",
            waits_for="for resources",
            place=number,
        )
        for number, user in ((1, "root"), (2, "bob"))
    ]
    for each in flexod.waiting:
        flexod.explained[each.job_id] = pb.ExplainJobReply(reason=needs)
    text = browser(0).get("/mine").text
    assert text.count(needs) == 1, "flexod is asked about the viewer's own jobs"
    assert "for resources (Resources)</a>" in text


@pytest.mark.parametrize(("said", "path"), [("17", "/jobs/17"), (" 17 ", "/jobs/17"), ("", "/")])
def test_a_number_that_is_typed_leads_to_the_job_and_nothing_typed_to_the_first_page(
    browser: Browser, said: str, path: str
) -> None:
    assert browser().get("/jobs", params={"id": said}).headers["location"] == path


def test_a_name_that_is_typed_leads_to_the_job_that_has_it(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.jobs = [job(17, name="resnet"), job(18, name="twice")]
    flexod.waiting = [pb.WaitingJob(job_id=31, name="twice", min=1, max=2)]
    user = browser()
    assert user.get("/jobs", params={"id": " resnet "}).headers["location"] == "/jobs/17"
    several = user.get("/jobs", params={"id": "twice"})
    assert several.status_code == 404
    assert "18, 31" in several.text


def test_a_name_leads_nobody_to_another_user_s_hidden_job(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.status.privacy.jobs = True
    flexod.jobs = [job(17, "trudy", name="resnet")]
    assert browser(UID).get("/jobs", params={"id": "resnet"}).status_code == 404


def test_the_events_of_all_jobs_are_on_a_page_and_one_of_a_job_has_those_before_it(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.events = [
        event(NOW, "grow", "job 17 grows", number=1, job_id=17),
        event(NOW, "wait", "job 31 waits", number=2, job_id=31),
        event(NOW, "extend", "its time limit is extended", number=3, job_id=17),
        event(NOW, "shrink", "job 17 shrinks", number=4, job_id=17),
    ]
    user = browser()
    every = user.get("/events").text
    assert [text in every for text in ("job 17 grows", "job 31 waits", "job 17 shrinks")] == [True] * 3
    assert '<a href="/events" aria-current="page">Events</a>' in every
    one = user.get("/events/4").text
    assert "job 17 grows" in one
    assert "job 31 waits" not in one
    assert "its time limit is extended" in user.get("/events/3").text, "lists leave it out, and links do not"


@pytest.mark.parametrize("said", ["0", "-1", "abc", "9" * 500, "//x"])
def test_what_is_no_number_of_a_job_is_repeated_on_a_page_with_the_navigation(
    browser: Browser, said: str
) -> None:
    for answer in (browser().get("/jobs", params={"id": said}), browser().get(f"/jobs/{quote(said)}")):
        assert answer.status_code == 404
        assert said.startswith("//") or said[:40] in answer.text
        assert '<a href="/mine"' in answer.text
    assert len(browser().get("/jobs", params={"id": said}).text) < 4000


@pytest.mark.parametrize("path", ["/whatif", "/jobs/17/x", "/what-if/no.html", "/events/x"])
def test_a_wrong_address_is_a_page_with_the_navigation_and_without_a_session_how_to_sign_in(
    browser: Browser, site: TestClient, path: str
) -> None:
    stranger = site.get(path)
    assert stranger.status_code in (401, 404)
    assert "flexo web" in stranger.text
    assert "ada" not in stranger.text
    answer = browser().get(path)
    assert answer.status_code == 404
    assert '<a href="/mine"' in answer.text


def test_a_job_with_a_number_that_no_cluster_has_does_no_harm(browser: Browser) -> None:
    assert browser().get(f"/jobs/{'9' * 40}").status_code == 404


def test_whatever_users_and_nodes_call_themselves_is_text(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.status.cluster = flexod.status.policy = flexod.status.trouble = HOSTILE
    flexod.jobs = [
        job(17, HOSTILE, reasons=[HOSTILE], pending_command=HOSTILE),
        job(18, base_nodes=[HOSTILE]),
    ]
    flexod.nodes = [pb.NodeView(name=HOSTILE, gpus=2, gpu_type=HOSTILE, unusable=HOSTILE)]
    flexod.waiting = [pb.WaitingJob(job_id=19, user=HOSTILE, reason=HOSTILE, name=HOSTILE)]
    flexod.explained[17] = pb.ExplainJobReply(
        sentences=[HOSTILE], events=[pb.Event(at=NOW, kind=HOSTILE, text=HOSTILE, job_id=17)]
    )
    user = browser()
    for path in ("/", "/mine", "/jobs/17"):
        text = user.get(path).text
        assert "&lt;script&gt;alert(1)" in text
        assert "{{ 7 * 7 }}" in text
        assert "\\u202egpj" in text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\u202e" not in text


def test_a_sentence_that_flexod_refuses_with_is_text_too(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.refusal = HOSTILE
    text = browser().get("/jobs/5").text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text


def test_pages_hold_no_inline_script_and_no_inline_style(browser: Browser) -> None:
    user = browser()
    for path in ("/", "/mine", "/jobs/17", "/loans", "/sharing", "/value", "/what-if", "/events/1"):
        text = user.get(path).text
        assert text.count("<script") == text.count('<script src="/static/web.js"') == 1
        assert "style=" not in text
        assert "<style" not in text
        assert "http://" not in text
        assert "https://" not in text


def test_a_job_s_page_says_which_part_of_its_hours_satellites_gave(
    flexod: FlexodDouble, browser: Browser
) -> None:
    events = [
        event(NOW + 3600, "end", "the job ended: COMPLETED"),
        event(NOW, "grow", "grow by 3 workers on t2: x", "t2", 3, True),
    ]
    end = pb.JobEnd(
        state="COMPLETED",
        started_at=NOW,
        ended_at=NOW + 3600,
        base_workers=1,
        most_workers=4,
        gpus_per_worker=1.0,
    )
    flexod.explained[9] = pb.ExplainJobReply(sentences=["the job ended"], events=events, end=end)
    assert "3.00 GPU hours, 75% of all" in browser().get("/jobs/9").text


@pytest.mark.parametrize("number", ["0", "-1", "x", "9" * 5000, "\uff11"])
def test_what_is_no_number_of_a_job_or_an_event_is_not_found_and_is_no_error(
    browser: Browser, number: str
) -> None:
    visitor = browser()
    for page in ("jobs", "events"):
        answer = visitor.get(f"/{page}/{number}")
        assert answer.status_code == 404
        assert "Content-Security-Policy" in answer.headers
