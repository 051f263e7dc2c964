"""Reasons on the pages lead to the event that has them, or say that flexod computes them now."""

from __future__ import annotations

import inspect

import pytest
from flexod_double import NOW, UID, FlexodDouble, event, job
from signed_in import Browser, until

from flexo.policies import satellite_words
from flexo_protos.v1 import admin_pb2 as pb
from flexo_web import explained

GROWN = event(NOW, "grow", "grow by 2 workers on t2: t2 is idle", "t2", 2, True, number=4)
CAPPED = event(NOW + 1, "scale", "job 17 goes to 4: asked by ada", number=5)
LATER = event(NOW + 2, "extend", "the time limit is extended", number=6)
CAP = "4 of 4 workers: capped at 4 by flexo scale; the maximum is 8"


@pytest.mark.parametrize("path", ["/", "/jobs/17"])
def test_a_job_s_size_leads_to_the_newest_event_that_changed_it_and_its_cap_to_the_one_that_set_it(
    flexod: FlexodDouble, browser: Browser, path: str
) -> None:
    flexod.jobs = [job(17, wanted=4, reasons=[CAP])]
    flexod.events = [GROWN, CAPPED, LATER]
    flexod.explained[17] = pb.ExplainJobReply(sentences=[CAP], events=[LATER, CAPPED, GROWN])
    text = browser().get(path).text
    assert '<a href="/events/4"><strong>4</strong>' in "".join(text.split("\n"))
    assert f'<a class="reason" href="/events/5">{CAP}</a>' in text


def test_a_reason_that_flexod_computes_now_says_so_and_leads_to_the_job(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, reasons=["4 of 8 workers: no idle GPU is left"])]
    flexod.events = [CAPPED]
    text = browser().get("/").text
    assert 'href="/jobs/17#why">4 of 8 workers: no idle GPU is left</a>' in text
    assert "computed now" in text
    assert "/events/" not in text


@pytest.mark.parametrize("path", ["/", "/jobs/17"])
def test_a_reason_of_the_present_leads_to_the_event_that_flexod_names(
    flexod: FlexodDouble, browser: Browser, path: str
) -> None:
    why = "4 of 8 workers: no idle GPU is left"
    flexod.jobs = [job(17, reasons=[why], reason_event=12)]
    flexod.explained[17] = pb.ExplainJobReply(sentences=["it has been resized once", why])
    text = browser().get(path).text
    assert f'<a class="reason" href="/events/12">{why}</a>' in text
    assert "computed now" not in text
    assert text.count("/events/12") == 1 + (
        path == "/"
    )  # the page Now has it as the reason of idle GPUs, too


@pytest.mark.parametrize(
    ("path", "said"), [("/mine", "for resources (Resources)"), ("/jobs/31", "Job 31 (ada)")]
)
def test_what_a_job_waits_for_leads_to_the_event_that_flexod_names(
    flexod: FlexodDouble, browser: Browser, path: str, said: str
) -> None:
    waits = {"reason": "Resources", "waits_for": "for resources"}
    flexod.waiting = [pb.WaitingJob(job_id=31, user="ada", min=1, max=2, reason_event=12, **waits)]
    sentences = ["job 31 (ada) has been pending for 5 min, for resources (Resources)", "the cluster plans it"]
    flexod.explained[31] = pb.ExplainJobReply(sentences=sentences)
    text = browser().get(path).text
    assert f'<a class="reason" href="/events/12">{said}' in text
    assert text.count("/events/12") == 1
    assert "computed now" not in text


def test_a_node_that_keeps_a_job_waiting_leads_to_the_event_on_the_node(
    flexod: FlexodDouble, browser: Browser
) -> None:
    """It was a link on the page Now, and plain text on the page of the job."""
    flexod.nodes = [pb.NodeView(name="t3", gpus=4, unusable="DOWN: fan", idle_event=9)]
    flexod.waiting = [pb.WaitingJob(job_id=31, user="ada", min=1, max=2)]
    sentences = ["t3 cannot be used (DOWN: fan), and 1 more node", "t33 cannot be used (DOWN: fan)"]
    flexod.explained[31] = pb.ExplainJobReply(sentences=sentences)
    text = browser().get("/jobs/31").text
    assert text.count('<a class="reason" href="/events/9">') == 1
    assert '<a class="reason" href="/events/9">t3 cannot be used' in text


@pytest.mark.parametrize(("named", "leads_to"), [(12, 12), (0, 4)])
def test_the_headline_of_a_job_leads_to_its_reason_or_else_to_its_last_resize(
    named: int, leads_to: int, flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, reason_event=named)]
    said = "4 of 2-8 workers: no idle GPU"
    flexod.explained[17] = pb.ExplainJobReply(headline=said, events=[GROWN])
    assert f'href="/events/{leads_to}">{said}</a>' in browser().get("/jobs/17").text


def test_an_older_flexod_which_names_no_event_leaves_what_a_job_waits_for_with_the_job(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.waiting = [pb.WaitingJob(job_id=31, user="ada", min=1, max=2, reason="Resources")]
    text = browser().get("/mine").text
    assert 'href="/jobs/31#why">Resources</a>' in text
    assert "computed now" in text


def test_gpus_that_are_idle_for_others_jobs_lead_nobody_to_an_event_that_he_may_not_see(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.status.privacy.jobs = True
    flexod.jobs = [job(17, reasons=["4 of 8 workers: t1 has idle GPUs but not the CPUs"], reason_event=12)]
    text = browser(UID).get("/").text
    assert 'id="idle"' in text
    assert "/events/12" not in text


def test_what_a_job_with_all_that_it_can_use_has_leads_to_its_last_resize(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, reasons=["4 of 4 workers: all that it can use"])]
    flexod.events = [GROWN]
    assert 'href="/events/4">4 of 4 workers: all that it can use</a>' in browser().get("/").text


def test_after_a_restart_of_flexod_a_job_s_size_still_leads_to_the_resize_and_else_to_the_adoption() -> None:
    adopted = event(
        NOW + 9, "adopt", "satellite 9 with 2 workers on t2 is taken over", "t2", 2, True, number=8
    )
    assert explained.Explained([adopted, GROWN]).size(17, 0) == GROWN.number
    assert explained.Explained([adopted]).size(17, 0) == adopted.number


def test_an_event_of_the_run_before_a_requeue_explains_nothing_of_the_present_one(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, restart_count=1, reasons=[CAP])]
    flexod.events = [GROWN, CAPPED]
    assert "/events/" not in browser().get("/").text


def test_a_place_in_the_policy_s_order_leads_to_the_event_that_set_it(
    flexod: FlexodDouble, browser: Browser
) -> None:
    ordered = "sets the priority of pending jobs, by the policy's order: 30, 31"
    flexod.events = [event(NOW, "order", ordered, number=9, job_id=0)]
    flexod.waiting = [pb.WaitingJob(job_id=31, user="ada", min=1, max=2, reason="Priority", place=2)]
    assert '<a href="/events/9">2</a>' in browser().get("/mine").text


def test_an_event_that_names_others_jobs_is_linked_for_those_alone_who_may_see_it(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.status.privacy.jobs = True
    ordered = "sets the priority of pending jobs, by the policy's order: 30, 31"
    flexod.events = [event(NOW, "order", ordered, number=9, job_id=0)]
    flexod.waiting = [pb.WaitingJob(job_id=31, user=str(UID), min=1, max=2, reason="Priority", place=2)]
    visitor = browser(UID)
    text = visitor.get("/mine").text
    assert 'id="job-31"' in text
    assert "/events/9" not in text
    flexod.status.privacy.jobs = False
    until(lambda: "/events/9" in visitor.get("/mine").text)


def test_the_words_that_lead_to_events_are_flexod_s() -> None:
    said = inspect.getsource(satellite_words)
    assert [words for words in explained._REASONS if words not in said] == []
