"""Pages with nothing to show say what would make something appear; times have a zone."""

from __future__ import annotations

import time

import pytest
from flexod_double import NOW, FlexodDouble, event
from signed_in import Browser


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/", "sbatch --elastic=MIN-MAX SCRIPT"),
        ("/mine", "sbatch --elastic=MIN-MAX SCRIPT"),
        ("/mine", "flexo jobs -t pending"),
        ("/sharing", "sbatch --elastic-opportunistic=MIN-MAX SCRIPT"),
        ("/loans", "flexo.toml"),
    ],
)
def test_an_empty_page_names_what_would_fill_it(
    flexod: FlexodDouble, browser: Browser, path: str, command: str
) -> None:
    flexod.jobs = []
    assert f"<code>{command}</code>" in browser().get(path).text


def test_the_page_of_sharing_says_that_it_is_off_unless_it_was_set_up(browser: Browser) -> None:
    text = browser().get("/sharing").text
    assert "Sharing is off unless" in text
    assert "<code>[sharing]</code>" in text


def test_where_servers_may_be_lent_and_none_is_the_page_names_the_command_that_says_why(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.loans.lending = True
    assert "<code>flexo loans</code>" in browser().get("/loans").text


def test_times_have_their_zone_in_the_title_and_once_a_page(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.events = [event(NOW, "grow", "x", number=1)]
    text = browser().get("/events/1").text
    zone = time.strftime("%Z, UTC%z", time.localtime(NOW))
    title = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(NOW)) + f" {zone}"
    assert f'title="{title}"' in text.replace("&#43;", "+")
    footer = text[text.index("<footer>") :]
    assert time.strftime("UTC%z", time.localtime()) in footer.replace("&#43;", "+")
