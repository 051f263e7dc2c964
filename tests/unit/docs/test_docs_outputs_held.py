"""Every output in tutorials and how-to pages is compared by a test, or its page says that none does so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from written_pages import PAGES, ROOT, text_of

_FENCES = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMPARED = re.compile(r"<!-- compared by (\S+) -->$")
_UNHELD = re.compile(r"not run here|no test compares this output", re.IGNORECASE)
"""What a page says to its readers above an output that may have changed since."""


def unheld(text: str) -> Iterator[str]:
    """The outputs in a page's text of which nothing says who holds them. An output has the language `text` or
    `console`, or begins with a prompt."""
    for match in _FENCES.finditer(text):
        if match[2] not in ("text", "console") and not match[3].lstrip().startswith("$ "):
            continue
        before = text[: match.start()].rstrip()
        paragraph = before.rsplit("\n\n", 1)[-1]
        if before.endswith("<!-- executed -->") or _UNHELD.search(paragraph):
            continue
        named = _COMPARED.search(before)
        if named is None or not (ROOT / named[1]).is_file():
            yield match[3].strip().splitlines()[0]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.startswith(("docs/tutorial/", "docs/howto/"))]
)
def test_a_page_says_who_holds_its_outputs(page: str) -> None:
    assert list(unheld(text_of(page))) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_test_that_a_page_names_reads_that_page(page: str) -> None:
    for name in set(re.findall(r"<!-- compared by (\S+) -->", text_of(page))):
        assert Path(page).relative_to("docs").as_posix() in (ROOT / name).read_text()


@pytest.mark.parametrize(
    "text",
    [
        "Then:\n\n```text\na 1\n```\n",
        "```console\n$ a\n```\n",
        "- Item:\n\n    ```text\n    a 1\n    ```\n",
        "```\n$ a\n```\n",
        "<!-- compared by tests/no_such_test.py -->\n```text\na 1\n```\n",
        "Not run here.\n\nThen:\n\n```text\na 1\n```\n",
    ],
)
def test_an_output_that_nothing_holds_is_found(text: str) -> None:
    assert len(list(unheld(text))) == 1
