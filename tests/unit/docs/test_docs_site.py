"""The documentation builds into a site without a warning, and what it shows is all its own."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_text import cell, code, table
from written_pages import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra docs)")
import markdown

_LOADED = re.compile(r"<(?:script|img|link|iframe|source|use)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//", re.I)
_STYLED = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = ROOT / "docs" / "site" / "mkdocs.yml"
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict"]
    done = subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.processes
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [page.name for page in pages if _LOADED.search(page.read_text())] == []
    assert [style.name for style in site.rglob("*.css") if _STYLED.search(style.read_text())] == []


def test_the_home_page_is_the_readme_and_its_links_stay_on_the_site(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert "Elastic deep learning on Slurm" in home
    assert 'href="tutorial/quickstart.html"' in home
    assert "docs/tutorial" not in re.sub(r"<code>.*?</code>|>[^<]*<", "", home)


def test_a_file_of_the_repository_that_a_page_links_to_is_there(site: Path) -> None:
    assert "repository/slurm_plugin/slurm.conf.example" in (site / "howto" / "admin-guide.html").read_text()
    shown = (site / "repository" / "slurm_plugin" / "slurm.conf.example").read_text()
    assert shown == (ROOT / "slurm_plugin" / "slurm.conf.example").read_text()


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    page = (site / "explanation" / "scalability.html").read_text()
    assert page.count("<math") > 20
    assert "arithmatex" not in page


@pytest.mark.parametrize(
    "text", ["a_b_c *d* **e**", "<f> & &amp;", "[g](h) !", "i | j", "k \\ l", "one ` alone"]
)
def test_words_of_the_program_are_shown_as_they_are(text: str) -> None:
    shown = markdown.markdown(table(("x", "y"), [(code("--m A|B"), cell(text))]), extensions=["tables"])
    cells = re.findall(r"<td>(.*?)</td>", shown)
    assert cells[0] == "<code>--m A|B</code>"
    assert html.unescape(cells[1]) == text


def test_what_is_generated_is_on_its_pages(site: Path) -> None:
    assert "min_interval_s" in (site / "reference" / "configuration.html").read_text()
    assert 'id="flexo-scale"' in (site / "reference" / "commands.html").read_text()
    assert 'id="commanddone-outcome"' in (site / "reference" / "protocols.html").read_text()
    assert "generated:" not in "".join(page.read_text() for page in site.rglob("*.html"))
