"""Banners say what is wrong once, and to those who can do something about it."""

from __future__ import annotations

import pytest
from flexod_double import UID, FlexodDouble, event
from signed_in import Browser, until

SETTINGS = ["[notices] timeout_s", "[service] web_steering"]
RESTART = "needs a restart of flexod: [notices] timeout_s, [service] web_steering"
SLOW = "slurmctld answers slowly"


@pytest.mark.parametrize("troubles", [[], [SLOW], ["x", "y"]])
def test_settings_that_need_a_restart_are_shown_to_root_and_to_no_user(
    flexod: FlexodDouble, browser: Browser, troubles: list[str]
) -> None:
    flexod.status.troubles[:] = troubles
    flexod.status.needs_restart[:] = SETTINGS
    root_sees, user_sees = (browser(uid).get("/").text for uid in (0, UID))
    assert "; ".join([*troubles, RESTART]) in root_sees
    assert "restart" not in user_sees
    assert "[notices]" not in user_sees
    assert "; ".join(troubles) in user_sees
    assert ("flexod reports" in user_sees) == bool(troubles)


def test_an_older_flexod_says_all_in_one_sentence(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.status.trouble = f"{SLOW}; {RESTART}"
    assert f"{SLOW}; {RESTART}" in browser(UID).get("/").text


@pytest.mark.parametrize("path", ["/", "/jobs/17", "/events/3"])
def test_what_is_wrong_leads_to_the_newest_event_that_says_it(
    flexod: FlexodDouble, browser: Browser, path: str
) -> None:
    flexod.status.troubles[:] = ["permission denied", SLOW]
    flexod.status.needs_restart[:] = SETTINGS
    flexod.events = [
        event(1.0, "trouble", SLOW, number=1, job_id=0),
        event(2.0, "trouble", "Slurm refused it: permission denied", number=2),
        event(3.0, "trouble", SLOW, number=3, job_id=0),
        event(4.0, "trouble", "all is well again", number=4, job_id=0),
        event(5.0, "daemon", f"configuration read again: {RESTART}", number=5, job_id=0),
    ]
    text = browser(0).get(path).text
    banner = text[text.index("flexod reports") :]
    banner = banner[: banner.index("</p>")]
    for number, said in ((2, "permission denied"), (3, SLOW), (5, RESTART)):
        assert f'href="/events/{number}">{said}</a>' in banner


def test_what_is_wrong_leads_nobody_to_an_event_of_a_job_that_he_may_not_see(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.status.privacy.jobs = True
    flexod.status.troubles[:] = ["permission denied"]
    flexod.events = [event(2.0, "trouble", "Slurm refused it: permission denied", number=2)]
    text = browser(UID).get("/").text
    assert "permission denied" in text
    assert "/events/2" not in text


@pytest.mark.parametrize("path", ["/", "/jobs/17", "/jobs/5", "/events/3", "/loans"])
def test_a_page_says_once_that_flexod_does_not_answer(
    flexod: FlexodDouble, browser: Browser, path: str
) -> None:
    visitor = browser()
    flexod.present = False
    until(lambda: "does not answer since" in visitor.get("/").text)
    text = visitor.get(path).text
    assert text.replace("flexo-web does not answer", "").count("does not answer") == 1
    assert "No answer at 127.0.0.1:" in text
    assert "--daemon" not in text  # a viewer did not choose the address
