"""Where links lead: pages link within the repository, for who reads them there, and the site is another tree.

Pages of docs/ are at the site's top, the README is its home page, and other files that pages link to are
shown as they are, below repository/.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = "docs"
ELSEWHERE: Final = "repository"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def targets(markdown: str, page: str) -> Iterator[str]:
    """Files of the repository, as paths in it, that `page` (likewise) links to."""
    for match in _LINK.finditer(_CODE.sub("", markdown)):
        yield _target(page, match[1])


def on_site(path: str) -> str:
    """The place in the site's sources of a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{ELSEWHERE}/{path}"


def rewritten(markdown: str, page: str) -> str:
    """`markdown` of `page` with links that lead to the same files on the site."""
    here = posixpath.dirname(on_site(page))
    return _LINK.sub(lambda match: posixpath.relpath(on_site(_target(page, match[1])), here or "."), markdown)


def _target(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
