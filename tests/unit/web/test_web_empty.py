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
        ("/loans", "flexo.toml"),
    ],
)
def test_an_empty_page_names_what_would_fill_it(
    flexod: FlexodDouble, browser: Browser, path: str, command: str
) -> None:
    flexod.jobs = []
    assert f"<code>{command}</code>" in browser().get(path).text


@pytest.mark.parametrize(
    ("partition", "said", "asks"),
    [(None, "does not say", False), ("", "[sharing]", False), ("shared", "partition shared", True)],
)
def test_the_page_of_sharing_says_whether_the_site_shares_gpus_and_where_it_does_how_to_ask(
    partition: str | None, said: str, asks: bool, flexod: FlexodDouble, browser: Browser
) -> None:
    if partition is not None:
        flexod.status.sharing_partition = partition
    text = browser().get("/sharing").text
    assert said in text
    assert ("sbatch --elastic-opportunistic=MIN-MAX SCRIPT" in text) is asks


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
