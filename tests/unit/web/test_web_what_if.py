"""The page of what-ifs: the site's reports in a sandbox, and the commands that make one."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from signed_in import Browser

from flexo_web import whatif_page
from flexo_web.security_headers import REPORT_POLICY


def test_a_report_that_the_site_has_put_there_is_listed_and_shown_in_a_sandbox(
    reports: Path, browser: Browser
) -> None:
    (reports / "october.html").write_text("<style>p {}</style><p>40% less waiting</p>")
    user = browser()
    assert 'href="/what-if/october.html"' in user.get("/what-if").text
    answer = user.get("/what-if/october.html")
    assert "40% less waiting" in answer.text
    assert answer.headers["content-security-policy"] == REPORT_POLICY
    assert "sandbox" in REPORT_POLICY


@pytest.mark.parametrize(
    "name", ["..%2Fsecret.html", "secret.txt", ".hidden.html", "a%20b.html", "none.html", "folder.html"]
)
def test_nothing_but_a_report_of_that_folder_can_be_read(reports: Path, browser: Browser, name: str) -> None:
    for path in (reports.parent / "secret.html", reports / "secret.txt", reports / ".hidden.html"):
        path.write_text("secret")
    (reports / "folder.html").mkdir(exist_ok=True)
    assert browser().get(f"/what-if/{name}").status_code == 404


def test_a_report_that_is_too_large_is_not_read(
    reports: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif_page, "MOST_BYTES", 10)
    (reports / "large.html").write_text("x" * 11)
    assert browser().get("/what-if/large.html").status_code == 404


def test_the_form_shows_commands_with_what_was_chosen_and_nothing_that_a_shell_would_run() -> None:
    asked = {"policy": "elastic-tiresias", "share": "50", "partition": "gpu; rm -rf /"}
    _, command = whatif_page.Question.of(asked).commands
    words = shlex.split(command)
    assert words[:2] == ["flexo", "whatif"]
    assert words[words.index("--partition") + 1] == "gpu; rm -rf /"
    assert words[words.index("--policy") + 1] == "elastic-tiresias"
    assert words[words.index("--elastic-share") + 1] == "50%"


def test_what_the_form_does_not_offer_becomes_the_default() -> None:
    asked = {"policy": "$(id)", "share": "-1", "software": "x"}
    assert whatif_page.Question.of(asked) == whatif_page.Question()


def test_the_commands_that_the_page_shows_are_those_of_the_command_line(browser: Browser) -> None:
    text = browser().get("/what-if", params={"software": "yarn", "share": "5"}).text
    assert "flexo yarn history &gt; jobs.txt" in text
    assert "flexo whatif --yarn jobs.txt" in text
