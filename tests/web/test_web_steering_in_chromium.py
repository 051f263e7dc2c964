"""People scale their own jobs in a real Chromium: without scripts, by keyboard, and on a real cluster."""

from __future__ import annotations

import json
import pwd
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from chromium import Browsers, Theme, Window
from flexod_double import FlexodDouble
from pretended import HOSTILE, furnish
from served import Served, served, until
from thorough import rare

from flexo_lab import Lab

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "web"
GAMES = pwd.getpwnam("games").pw_uid
BOUND_S = 120.0
BOUND_MS = 1000 * BOUND_S
ELASTIC = """#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
exec {flexo} run {python} {script} --step-seconds 0.2 --epochs 100000
"""


def allow(flexod: FlexodDouble) -> None:
    """17 is a job of games, and flexod believes flexo-web."""
    furnish(flexod)
    flexod.status.web_steering = True
    flexod.jobs[0].user = "games"


@pytest.fixture
def steered() -> Iterator[Served]:
    with served(allow) as made:
        yield made


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_job_is_scaled_by_keyboard_and_the_answer_has_the_focus(
    chromium: Browsers, steered: Served, scripts: bool
) -> None:
    with chromium.open(scripts=scripts) as seen:
        seen.enter(steered.link(GAMES))
        seen.page.goto(f"{steered.url}/jobs/17")
        seen.page.get_by_label("At most this many workers").focus()
        seen.page.keyboard.press("Control+A")
        seen.page.keyboard.type("6")
        seen.page.keyboard.press("Enter")
        seen.page.locator("#steer-said:focus").wait_for()
        assert "Done" in seen.page.inner_text("#steer-said")
        assert steered.flexod.scaled == [(17, 6, GAMES)]
        seen.page.reload()  # which sends nothing again
        assert len(steered.flexod.scaled) == 1
        seen.page.get_by_role("button", name="Allow the whole range").click()
        until(lambda: steered.flexod.scaled[1:] == [(17, 0, GAMES)])
    assert seen.complaints == []


def test_a_refusal_has_the_focus_and_hostile_words_in_it_do_no_harm(
    chromium: Browsers, steered: Served
) -> None:
    with chromium.open() as seen:
        seen.enter(steered.link(GAMES))
        seen.page.goto(f"{steered.url}/jobs/17")
        steered.flexod.denial = grpc.StatusCode.INVALID_ARGUMENT, f"job 17: {HOSTILE}"
        seen.page.get_by_role("button", name="Set the cap").click()
        seen.page.locator("#steer-said.bad:focus").wait_for()
        assert "<script>" in seen.page.inner_text("#steer-said")
        assert not seen.page.evaluate(
            "() => !!(window.pwned || document.querySelector('main img, main script'))"
        )
        seen.mark()
        steered.flexod.jobs[0].granted = 8  # an open page takes it over; the refusal stays
        seen.page.get_by_text("4>8").first.wait_for()
        assert seen.marked
        assert "Not done" in seen.page.inner_text("#steer-said")
    assert seen.complaints == []


def test_what_somebody_types_outlives_an_update_of_the_page(chromium: Browsers, steered: Served) -> None:
    with chromium.open() as seen:
        seen.enter(steered.link(GAMES))
        seen.page.goto(f"{steered.url}/jobs/17")
        seen.page.fill("#workers", "3")
        steered.flexod.jobs[0].wanted = 5  # somebody else has set a cap
        seen.page.locator("#main dt", has_text="Cap").wait_for()
        assert seen.page.input_value("#workers") == "3"
        assert seen.page.locator("#workers:focus").count() == 1


@pytest.mark.parametrize("theme", list(Theme))
@pytest.mark.parametrize("window", [Window.PHONE, rare(Window.WIDE)])
def test_axe_finds_nothing_in_the_form_and_its_answers(
    chromium: Browsers, steered: Served, theme: Theme, window: Window
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with chromium.open(window, theme) as seen:
        seen.enter(steered.link(GAMES))
        seen.page.goto(f"{steered.url}/jobs/17")
        for name, denial in (("done", None), ("refused", (grpc.StatusCode.ABORTED, "try again later"))):
            steered.flexod.denial = denial
            seen.page.get_by_role("button", name="Set the cap").click()
            seen.page.locator("#steer-said:focus").get_by_text("Not done" if denial else "Done").wait_for()
            assert seen.violations() == []
            picture = f"steer-{name}-{window.name.lower()}-{theme}.png"
            seen.page.screenshot(path=SCREENSHOTS / picture, full_page=True)
            overflow = seen.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0


def test_on_a_lab_a_user_scales_an_own_job_another_sees_no_form_and_the_history_says_who(
    chromium: Browsers, make_lab: Callable[..., Lab]
) -> None:
    pytest.importorskip("torch")
    lab = make_lab(nodes=2, gpus_per_node=4, infer_nodes=0)
    url = f"http://127.0.0.1:{lab.ports.web}"
    job = _submit(lab, "games")
    until(lambda: _granted(lab, job) == 4, BOUND_S)
    with ExitStack() as stack:
        games, news = (stack.enter_context(chromium.open()) for _ in range(2))
        for seen, user in ((games, "games"), (news, "news")):
            seen.enter(json.loads(lab.run(["flexo", "web", "--json"], user=user).stdout)["link"])
            seen.page.goto(f"{url}/jobs/{job}")
            seen.page.wait_for_selector("#gained", timeout=BOUND_MS)
            assert seen.page.locator("#workers").count() == 0, "nobody allows it yet"

        toml = lab.layout.flexo_toml
        allowed = f'[service]\nweb_steering = ["{lab.spec.web_account}"]'
        toml.write_text(toml.read_text().replace("[service]", allowed))
        lab.restart_flexod()
        games.page.wait_for_selector("#workers", timeout=BOUND_MS)
        games.page.fill("#workers", "2")
        games.page.get_by_role("button", name="Set the cap").click()
        games.page.locator("#steer-said:focus").get_by_text("gives back").wait_for(timeout=BOUND_MS)
        until(lambda: _granted(lab, job) <= 2, BOUND_S)
        assert games.page.locator("#steer-said.bad").count() == 0

        news.page.goto(f"{url}/jobs/{job}")
        assert news.page.locator("#workers").count() == 0
        events = json.loads(lab.run(["flexo", "events", "--json", str(job)]).stdout)["events"]
        told = [event["text"] for event in events if event["kind"] == "scale"]
        assert len(told) == 1
        assert told[0].endswith("scaled to 2 by games on the web page")
        games.page.get_by_text("by games on the web page").first.wait_for(timeout=BOUND_MS)

        games.page.get_by_role("button", name="Allow the whole range").click()
        until(lambda: _granted(lab, job) == 4, BOUND_S)
        lab.run(["scancel", "--quiet", str(job)], check=False)
        assert games.complaints == []


def _submit(lab: Lab, user: str) -> int:
    words = {
        "flexo": Path(sys.executable).parent / "flexo",
        "python": sys.executable,
        "script": ROOT / "examples" / "digits" / "train.py",
    }
    script = ELASTIC.format(**{name: shlex.quote(str(path)) for name, path in words.items()})
    return int(lab.run(["sbatch", "--parsable", "--output=/dev/null"], stdin=script, user=user).stdout)


def _granted(lab: Lab, job: int) -> int:
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return next((int(each["granted"]) for each in jobs if each["job_id"] == job), 0)
