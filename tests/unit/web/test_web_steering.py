"""Viewers scale their own jobs on the job's page, where flexod lets flexo-web; and nobody else makes them."""

from __future__ import annotations

import asyncio
import html
import pwd
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from flexod_double import FlexodDouble, client_of, job, serving
from signed_in import URL, Browser, until
from starlette.testclient import TestClient

from flexo_protos import web_login
from flexo_protos.v1 import admin_pb2 as pb
from flexo_web import steering
from flexo_web.feed import Client
from flexo_web.steering import Steering
from flexo_web.tokens import Tokens, Viewer

GAMES, NEWS = (pwd.getpwnam(name).pw_uid for name in ("games", "news"))
"""Accounts that every Debian has."""
PATH = "/jobs/17"
OWN = {"origin": URL}
_TOKEN = re.compile(r'name="token" value="([0-9a-f]{64})"')
_SAID = re.compile(r'<p id="steer-said"[^>]*>(.*?)</p>', re.DOTALL)


@pytest.fixture
def allowing(flexod: FlexodDouble) -> FlexodDouble:
    """flexod believes flexo-web. 17 is the job of games, 18 that of news."""
    flexod.status.web_steering = True
    flexod.jobs = [job(17, "games"), job(18, "news")]
    flexod.explained[18] = pb.ExplainJobReply(user="news", sentences=["no idle GPU is left"])
    return flexod


def token(viewer: TestClient, path: str = PATH) -> str:
    found = _TOKEN.search(viewer.get(path).text)
    assert found is not None
    return found[1]


def said(text: str) -> str:
    found = _SAID.search(text)
    return html.unescape(re.sub("<[^>]*>", "", found[1])) if found else ""


def send(viewer: TestClient, workers: str, path: str = PATH, of: str = ""):
    return viewer.post(path, headers=OWN, data={"token": of or token(viewer), "workers": workers})


def has_form(text: str) -> bool:
    return 'name="workers"' in text


def test_a_viewer_scales_an_own_job_and_sees_what_happens(allowing: FlexodDouble, browser: Browser) -> None:
    viewer = browser(GAMES)
    answer = send(viewer, "4")
    assert (answer.status_code, answer.headers["location"]) == (303, PATH)
    assert allowing.scaled == [(17, 4, GAMES)]
    assert "Done" in said(viewer.get(PATH).text)
    assert "job 17 goes to 4" in said(viewer.get(PATH).text)
    until(lambda: "<dt>Cap</dt><dd>4" in viewer.get(PATH).text)
    assert send(viewer, "auto").status_code == 303
    assert allowing.scaled[1:] == [(17, 0, GAMES)]
    until(lambda: "<dt>Cap</dt><dd>4" not in viewer.get(PATH).text)


def test_where_flexod_does_not_let_the_pages_there_is_no_form_and_a_forged_one_does_nothing(
    allowing: FlexodDouble, browser: Browser
) -> None:
    allowing.status.web_steering = False
    viewer = browser(GAMES)
    assert not has_form(viewer.get(PATH).text)
    answer = send(viewer, "4", of="0" * 64)
    assert answer.status_code == 403
    assert "web_steering" in said(answer.text)
    assert "ScaleViewersJob" not in allowing.asked


def test_a_site_that_stops_allowing_it_is_heeded_by_forms_that_are_open(
    allowing: FlexodDouble, browser: Browser
) -> None:
    viewer = browser(GAMES)
    mine = token(viewer)
    allowing.status.web_steering = False
    until(lambda: not has_form(viewer.get(PATH).text))
    assert send(viewer, "4", of=mine).status_code == 403
    assert allowing.scaled == []


@pytest.mark.parametrize(
    ("changes", "user"),
    [({}, "news"), ({"min": 4, "max": 4}, "games")],
    ids=["another's", "of one size"],
)
def test_a_job_that_its_viewer_cannot_scale_has_no_form(
    allowing: FlexodDouble, browser: Browser, changes: Mapping[str, int], user: str
) -> None:
    allowing.jobs = [job(17, user, **changes)]
    assert not has_form(browser(GAMES).get(PATH).text)


def test_root_and_jobs_that_do_not_run_have_no_form(allowing: FlexodDouble, browser: Browser) -> None:
    allowing.jobs = [job(17, "root")]
    assert not has_form(browser(0).get(PATH).text)
    allowing.jobs = []
    assert not has_form(browser(GAMES).get(PATH).text)


def test_another_users_job_is_asked_for_as_the_viewer_and_flexod_decides(
    allowing: FlexodDouble, browser: Browser
) -> None:
    viewer = browser(GAMES)
    assert send(viewer, "4", "/jobs/18").status_code == 403, "the token of one job is none for another"
    assert allowing.scaled == []
    allowing.denial = grpc.StatusCode.PERMISSION_DENIED, f"uid {GAMES} may not steer job 18"
    allowing.jobs[0].user, allowing.jobs[1].user = "news", "games"  # the page is wrong, or lied to
    until(lambda: has_form(viewer.get("/jobs/18").text))
    answer = send(viewer, "4", "/jobs/18", of=token(viewer, "/jobs/18"))
    assert answer.status_code == 409
    assert "may not steer job 18" in said(answer.text)


def test_where_jobs_are_hidden_a_form_sent_to_anothers_page_is_answered_like_one_to_none(
    allowing: FlexodDouble, browser: Browser
) -> None:
    allowing.status.privacy.CopyFrom(pb.Privacy(jobs=True, readers=["root"]))
    viewer = browser(GAMES)
    other, missing = (send(viewer, "4", f"/jobs/{number}") for number in (18, 999))
    assert other.status_code == missing.status_code == 404
    assert other.text == missing.text.replace("999", "18")
    assert allowing.scaled == []


@pytest.mark.parametrize(
    "origin",
    [None, "null", "", "http://evil.example", "http://127.0.0.1:9999", "http://[", f"{URL}.evil.example"],
)
def test_a_form_of_another_site_scales_nothing_though_it_has_the_cookie_and_the_token(
    allowing: FlexodDouble, browser: Browser, origin: str | None
) -> None:
    viewer = browser(GAMES)
    mine = token(viewer)
    headers = {} if origin is None else {"origin": origin}
    answer = viewer.post(PATH, headers=headers, data={"token": mine, "workers": "4"})
    assert answer.status_code == 403
    assert "another site" in answer.text
    assert allowing.scaled == []


@pytest.mark.parametrize("forged", ["", "0" * 64, "é", "\x00"])
def test_a_form_without_the_sessions_token_scales_nothing_and_says_what_to_do(
    allowing: FlexodDouble, browser: Browser, forged: str
) -> None:
    viewer = browser(GAMES)
    answer = viewer.post(PATH, headers=OWN, data={"token": forged, "workers": "4"})
    assert answer.status_code == 403
    assert "Send it again" in said(answer.text)
    assert allowing.scaled == []
    found = _TOKEN.search(answer.text)
    assert found is not None
    assert send(viewer, "4", of=found[1]).status_code == 303


def test_a_token_of_another_session_or_user_is_none(allowing: FlexodDouble, browser: Browser) -> None:
    before = token(browser(GAMES))
    again = browser(GAMES)
    assert token(again) != before
    assert send(again, "4", of=before).status_code == 403
    allowing.jobs = [job(17, "news")]
    other = browser(NEWS)
    until(lambda: has_form(other.get(PATH).text))
    assert send(other, "4", of=before).status_code == 403
    assert allowing.scaled == []


def test_a_form_that_is_sent_after_its_session_has_ended_changes_nothing_and_says_so(
    allowing: FlexodDouble, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = browser(GAMES)
    mine = token(viewer)
    monkeypatch.setattr(Tokens, "holder", lambda tokens, said: None)  # as after twelve hours
    answer = send(viewer, "4", of=mine)
    assert answer.status_code == 401
    assert "Nothing was changed" in answer.text
    assert allowing.scaled == []


def test_a_form_after_signing_out_is_refused_also_with_a_copy_of_the_cookie(
    allowing: FlexodDouble, browser: Browser
) -> None:
    viewer = browser(GAMES)
    mine, cookie = token(viewer), dict(viewer.cookies)
    viewer.post("/leave", headers=OWN)
    viewer.cookies.update(cookie)
    assert send(viewer, "4", of=mine).status_code == 401
    assert allowing.scaled == []


HOSTILE = (
    "",
    "-1",
    "0",
    "+2",
    "4.5",
    "1e3",
    "٤",
    "99999999",
    "4;auto",
    "<script>alert(1)</script>",
    "4\n5",
    "\u202e4",
)


@pytest.mark.parametrize("wrong", HOSTILE)
def test_what_is_no_number_of_workers_is_refused_with_what_is_and_as_text(
    allowing: FlexodDouble, browser: Browser, wrong: str
) -> None:
    answer = send(browser(GAMES), wrong)
    assert answer.status_code == 400
    assert "a whole number" in said(answer.text)
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    assert allowing.scaled == []


def test_hostile_text_of_flexods_answer_is_text(allowing: FlexodDouble, browser: Browser) -> None:
    allowing.denial = grpc.StatusCode.INVALID_ARGUMENT, 'job 17 <img src=x onerror="pwned()"> \u202e'
    answer = send(browser(GAMES), "4")
    assert "<img" not in answer.text
    assert "\u202e" not in answer.text
    assert "<img" in said(answer.text)


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "job 17 can have 2-8 workers, not 9", 409),
        (grpc.StatusCode.ABORTED, "job 17 is being resized: try again later", 409),
        (grpc.StatusCode.NOT_FOUND, "there is no running elastic job 17", 404),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many commands", 409),
    ],
)
def test_what_flexod_refuses_is_shown_in_its_words_on_the_page(
    allowing: FlexodDouble, browser: Browser, code: grpc.StatusCode, text: str, status: int
) -> None:
    viewer = browser(GAMES)
    allowing.denial = code, text
    answer = send(viewer, "9")
    assert answer.status_code == status
    assert "Not done" in said(answer.text)
    assert text in said(answer.text)
    assert text in said(viewer.get(PATH).text), "an update of the page does not remove it"


def test_while_flexod_is_away_the_page_says_that_nobody_knows_and_that_twice_does_no_harm(
    allowing: FlexodDouble, browser: Browser
) -> None:
    viewer = browser(GAMES)
    mine = token(viewer)
    allowing.present = False
    answer = send(viewer, "4", of=mine)
    assert answer.status_code == 503
    assert "did not answer" in said(answer.text)
    assert "Not known" in said(answer.text)
    assert "Not done" not in said(answer.text), "nobody knows that"
    assert "127.0.0.1" not in said(answer.text)
    allowing.present = True
    assert send(viewer, "4", of=mine).status_code == 303


def test_a_form_that_is_sent_twice_at_once_asks_for_the_same_in_turn(
    allowing: FlexodDouble, browser: Browser
) -> None:
    under_way, most = [0], [0]
    lock = threading.Lock()

    def slowly() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        threading.Event().wait(0.2)
        with lock:
            under_way[0] -= 1

    allowing.before_scaling = slowly
    viewer = browser(GAMES)
    mine = token(viewer)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: send(viewer, "4", of=mine).status_code, range(3)))
    assert answers == [303] * 3
    assert allowing.scaled == [(17, 4, GAMES)] * 3
    assert most == [1]


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"content-type": "text/plain"}, b"workers=4"),
        ({"content-type": "application/json"}, b"{}"),
        ({}, b"workers=4"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"workers=4&workers=5"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"workers=%ff"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"workers=\xff"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"&".join(b"a%d=1" % n for n in range(9))),
        ({"content-type": "application/x-www-form-urlencoded"}, b"workers=" + b"4" * 5000),
    ],
)
def test_what_is_no_form_of_the_pages_is_refused(
    allowing: FlexodDouble, browser: Browser, headers: Mapping[str, str], content: bytes
) -> None:
    answer = browser(GAMES).post(PATH, headers={**OWN, **headers}, content=content)
    assert answer.status_code == 400
    assert "form" in answer.text
    assert allowing.scaled == []


def test_one_viewer_does_not_see_what_was_said_to_another(allowing: FlexodDouble, browser: Browser) -> None:
    send(browser(GAMES), "4")
    assert said(browser(NEWS).get(PATH).text) == ""


def test_a_page_with_a_form_does_not_change_by_itself(allowing: FlexodDouble, browser: Browser) -> None:
    viewer = browser(GAMES)
    assert has_form(viewer.get(PATH).text)
    assert token(viewer) == token(viewer)


def test_what_was_said_goes_after_a_while_and_a_flood_keeps_one_answer_of_each_user() -> None:
    now = [0.0]

    async def story(made: Steering) -> None:
        ada, bob = Viewer(1, "ada"), Viewer(2, "bob")
        await made.scale(bob, 5, "x")
        for number in range(5000):
            await made.scale(ada, number, "x")
        assert made.said(bob, 5) is not None
        assert made.said(ada, 4999) is not None
        assert made.said(ada, 4998) is None
        assert made.said(ada, 5) is None
        now[0] = steering._SHOWN_S
        assert made.said(bob, 5) is None

    with serving(FlexodDouble()) as address:
        asyncio.run(story(Steering(Client(lambda: client_of(address)), lambda: now[0])))


def test_the_flood_of_one_user_takes_one_place_before_flexod_so_that_others_are_next() -> None:
    class Queue(Client):
        """Keeps what is asked, and answers once `open` is set."""

        def __init__(self) -> None:
            self.asked: list[int] = []
            self.open = asyncio.Event()

        async def call(self, ask: Callable[[Any], Any]) -> Any:
            reply = ask(self)
            await self.open.wait()
            return reply

        def scale_viewers_job(self, job_id: int, workers: int, uid: int) -> pb.ScaleJobReply:
            self.asked.append(uid)
            return pb.ScaleJobReply(text="done")

    async def story() -> None:
        queue = Queue()
        made = Steering(queue)
        ada, bob = Viewer(1, "ada"), Viewer(2, "bob")
        asking = [asyncio.create_task(made.scale(ada, 5, "4")) for _ in range(9)]
        asking.append(asyncio.create_task(made.scale(bob, 6, "4")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert queue.asked == [ada.uid, bob.uid]
        queue.open.set()
        assert all([(await each).done for each in asking])
        assert sorted(queue.asked) == [ada.uid] * 9 + [bob.uid]

    asyncio.run(story())


def test_a_credential_of_the_command_opens_no_session_that_the_form_would_need(
    allowing: FlexodDouble, site: TestClient
) -> None:
    proof = {"flexo-munge": f"{GAMES} {web_login.purpose(URL)}", **OWN}
    assert site.post(PATH, headers=proof, data={"workers": "4"}).status_code == 401
    assert allowing.scaled == []
