"""flexo-web on a real cluster: two users enter as themselves, and the page outlives a restart of flexod."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from flexo_lab import Lab
from flexo_lab.processes import belonging_to, daemons_of

BOUND_S = 90


@pytest.fixture(scope="module")
def web_lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(nodes=2, infer_nodes=0, web=True)


@contextmanager
def browser(lab: Lab, user: str) -> Iterator[httpx2.Client]:
    """The browser of `user`, who has opened the link of `flexo web`."""
    link = json.loads(lab.run(["flexo", "web", "--json"], user=user).stdout)["link"]
    url = link.partition("/enter/")[0]
    with httpx2.Client(base_url=url, trust_env=False, follow_redirects=True) as entered:
        assert f"Enter as {user}" in entered.get(link).text
        assert entered.post(link, headers={"origin": url}).status_code == 200
        yield entered


def until(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.5)


def test_two_users_enter_as_themselves_and_each_finds_his_own_job_that_waits(web_lab: Lab) -> None:
    for user in ("games", "news"):
        web_lab.run(["sbatch", "--comment=elastic=1-2", "--gpus=1", "--hold", "--wrap=true"], user=user)
    for user, other in (("games", "news"), ("news", "games")):
        with browser(web_lab, user) as entered:
            until(lambda page=entered, who=other: f">{who}<" in page.get("/mine").text, "both jobs are shown")
            own, _, others = entered.get("/mine").text.partition("Others")
            assert (f">{user}</span>" in own, f">{other}</span>" in own) == (True, False)
            assert (f">{user}</span>" in others, f">{other}</span>" in others) == (False, True)
            assert "held (JobHeldUser)" in own


def test_the_idle_gpus_of_a_drained_node_lead_to_the_event_that_says_since_when_and_why(web_lab: Lab) -> None:
    node = ["scontrol", "update", "nodename=t2"]
    web_lab.run([*node, "state=drain", "reason=bad fan"])
    with browser(web_lab, "games") as entered:
        link = re.compile(r'href="(/events/\d+)">[^<]*bad fan')
        until(lambda: link.search(entered.get("/").text), "the reason is a link")
        (found,) = set(link.findall(entered.get("/").text))  # on the map of nodes, and in the list
        told = entered.get(found).text
    web_lab.run([*node, "state=resume"])
    assert "the idle GPUs of t2 stay idle" in told
    assert "bad fan" in told


def test_a_page_names_the_time_since_which_flexod_is_away_and_goes_on_with_the_next_flexod(
    web_lab: Lab,
) -> None:
    with browser(web_lab, "games") as entered:
        until(lambda: ">t2<" in entered.get("/").text, "the nodes are shown")
        web_lab.stop_flexod()
        until(lambda: "flexod does not answer since" in entered.get("/").text, "the banner is there")
        assert ">t2<" in entered.get("/").text
        web_lab.start_flexod()
        until(lambda: "flexod does not answer" not in entered.get("/").text, "the banner is gone")


def test_flexo_web_runs_without_rights_and_goes_with_its_lab(web_lab: Lab) -> None:
    (pid,) = [each.pid for each in daemons_of(web_lab.directory) if each.name == "flexo-web"]
    (process,) = [each for each in belonging_to(web_lab.directory) if each.pid == pid]
    assert process.username() == "nobody"
    web_lab.down()
    until(lambda: not process.is_running(), "it is gone, and whoever reaps it has done so")
