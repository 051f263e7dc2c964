"""Banners say what is wrong once, and to those who can do something about it."""

from __future__ import annotations

import pytest
from flexod_double import UID, FlexodDouble
from signed_in import Browser, until

RESTART = "needs a restart of flexod: [notices] timeout_s, [service] web_steering"
SLOW = "slurmctld answers slowly"


@pytest.mark.parametrize("trouble", [RESTART, f"{RESTART}; {SLOW}", f"{SLOW}; {RESTART}", f"x; {RESTART}; y"])
def test_settings_that_need_a_restart_are_shown_to_root_and_to_no_user(
    flexod: FlexodDouble, browser: Browser, trouble: str
) -> None:
    flexod.status.trouble = trouble
    root_sees = browser(0).get("/").text
    assert RESTART in root_sees
    user_sees = browser(UID).get("/").text
    assert "restart" not in user_sees
    assert "[notices]" not in user_sees
    for other in (SLOW, "x; y"):
        assert (other in user_sees) == (other.partition(";")[0] in trouble.split("; "))
    assert ("flexod reports" in user_sees) == (trouble != RESTART)


@pytest.mark.parametrize("path", ["/", "/jobs/17", "/jobs/5", "/events/3", "/loans"])
def test_a_page_says_once_that_flexod_does_not_answer(
    flexod: FlexodDouble, browser: Browser, path: str
) -> None:
    visitor = browser()
    flexod.present = False
    until(lambda: "does not answer since" in visitor.get("/").text)
    assert visitor.get(path).text.replace("flexo-web does not answer", "").count("does not answer") == 1
