"""Links within the repository lead somewhere: to files that are there, and to sections that those have."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import parts
import pytest
from written_pages import PAGES, ROOT, text_of

_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.*?)(?: \{#([\w-]+)\})?$", re.MULTILINE)
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def sections(page: str) -> set[str]:
    """The anchors of a page: of its headings, as forges and the site make them, and those that it says."""
    text = _CODE.sub("", parts.filled(text_of(page)))
    said = set(re.findall(r'<a id="([^"]+)">', text))
    for heading, anchor in _HEADING.findall(text):
        said.add(anchor or re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return said


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_section_that_are_there(page: str) -> None:
    dead = []
    for link, anchor in _LINK.findall(_CODE.sub("", text_of(page))):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) if link else page
        if not (ROOT / target).exists() or (anchor and anchor not in sections(target)):
            dead.append(f"{link}#{anchor}" if anchor else link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_is_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", text_of(page))
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_readme_leads_to_every_page_and_the_list_of_decisions_to_every_decision() -> None:
    decisions = {page for page in PAGES if page.startswith("docs/decisions/")}
    pages = {page for page in PAGES if page.startswith("docs/")} - decisions
    assert pages
    assert decisions
    for start, wanted in (("README.md", pages), ("docs/decisions/README.md", decisions)):
        linked = {(Path(start).parent / link).as_posix() for link, _ in _LINK.findall(text_of(start))}
        assert wanted - {start} <= linked
