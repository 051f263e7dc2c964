"""The documentation's search works where the site is opened from files, without a server or a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chromium import Browsers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ".md-search-result__link"


def test_a_site_that_is_opened_from_files_can_be_searched(chromium: Browsers, tmp_path: Path) -> None:
    config = ROOT / "docs" / "site" / "mkdocs.yml"
    build = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--config-file", str(config)]
    subprocess.run([*build, "--site-dir", str(tmp_path / "a site")], check=True)
    with chromium.open() as seen:
        page = seen.page
        page.goto((tmp_path / "a site" / "howto" / "install.html").as_uri())
        page.wait_for_load_state("networkidle")
        page.click("input.md-search__input")
        page.keyboard.type("satellite")
        page.wait_for_selector(RESULTS)
        assert page.locator(RESULTS).count() > 10
        assert seen.complaints == []
