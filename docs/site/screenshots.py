"""`make pictures`: photographs the web pages, `flexo top` and a what-if report for docs/images.

As root, in flexo's virtual environment, with Debian's Chromium. The pages and `flexo top` show a lab's real
jobs. The report is examples/site/whatif.html.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright
from rich.console import Console
from rich.text import Text

from flexo_lab import Lab, LabSpec, bring_up

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGES: Final = ROOT / "docs" / "images"
REPORT: Final = ROOT / "examples" / "site" / "whatif.html"
SCRIPT: Final = ROOT / "examples" / "digits" / "train.py"
CHROMIUM: Final = "/usr/bin/chromium"
USER: Final = "games"
"""An account that every Debian has, and who submits the elastic jobs."""
JOBS: Final = (("digits", "1-6"), ("sweep", "1-4"))
"""Name and range of each elastic job that trains."""
NODES: Final = 3
GPUS: Final = 3
"""A node's."""
COLOURS: Final = 64
COLUMNS: Final = 104
WAITS_S: Final = 200.0
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_TRAINS: Final = """#!/bin/sh
#SBATCH -n 1 --gpus-per-task=1 --elastic={range} --job-name={name} --output=/dev/null
exec {flexo} run {python} {script} --step-seconds 0.2 --epochs 100000
"""


def main() -> None:
    """Draw all of them."""
    with _chromium() as browser:
        photograph_report(browser)
        lab = bring_up(LabSpec(name="screenshots", nodes=NODES, gpus_per_node=GPUS, infer_nodes=0, web=True))
        try:
            job = play(lab)
            draw_top(lab)
            photograph_pages(browser, lab, job)
        finally:
            lab.down()


@contextmanager
def _chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def photograph_report(browser: Browser) -> None:
    """Photograph the report's beginning, and its GPUs over time without and with elastic jobs."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(REPORT.as_uri())
    table = page.locator("table").first.bounding_box()
    assert table is not None, "the report has no table"
    _crop(page, "what-if-report", 0, table["y"] + table["height"] + 16)
    end = _top(page, "How long GPUs were idle between jobs")
    _crop(page, "use-before-after", _top(page, "GPUs over time"), end)
    page.close()


def _top(page: Page, heading: str) -> float:
    """Where the heading that begins so stands, in pixels from the page's top."""
    box = page.locator("h2", has_text=heading).first.bounding_box()
    assert box is not None, f"the report has no heading {heading!r}"
    return box["y"] - 16


def _crop(page: Page, name: str, top: float, end: float) -> None:
    clip: FloatRect = {"x": 0, "y": top, "width": 1200, "height": end - top}
    _write(name, page.screenshot(full_page=True, clip=clip))


def _write(name: str, png: bytes) -> None:
    """Write a PNG of few colours, which is a third as large."""
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(IMAGES / f"{name}.png", optimize=True)


def play(lab: Lab) -> int:
    """Have elastic jobs grow over the whole lab, and make room for a rigid job. Returns a job's number."""
    first, *_ = [_submit(lab, name, sizes) for name, sizes in JOBS]
    _until(lambda: _granted(lab) == NODES * GPUS)
    fills_a_node = ["sbatch", "--parsable", "-N1", f"--gpus-per-node={GPUS}", "--output=/dev/null"]
    rigid = lab.run([*fills_a_node, "--job-name=rigid", "--wrap=sleep 600"], user=USER).stdout.strip()
    _until(lambda: "RUNNING" in lab.run(["squeue", "--noheader", "--jobs", rigid, "--format=%T"]).stdout)
    waits = ["sbatch", "--parsable", "-n5", "--gpus-per-task=1", "--elastic=5-8", "--output=/dev/null"]
    lab.run([*waits, "--job-name=large", "--wrap=sleep 600"], user=USER)
    time.sleep(20)  # the sizes settle, and flexo-web counts idle GPUs
    return first


def _submit(lab: Lab, name: str, sizes: str) -> int:
    words = {"flexo": Path(sys.executable).parent / "flexo", "python": sys.executable, "script": SCRIPT}
    quoted = {key: shlex.quote(str(path)) for key, path in words.items()}
    script = _TRAINS.format(name=name, range=sizes, **quoted)
    return int(lab.run(["sbatch", "--parsable"], user=USER, stdin=script).stdout)


def _granted(lab: Lab) -> int:
    """Workers that all elastic jobs train with, or are granted."""
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return sum(int(each["granted"]) for each in jobs)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAITS_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"what the pictures are to show did not happen within {WAITS_S:.0f} s")
        time.sleep(1)


def draw_top(lab: Lab) -> None:
    """Draw what `flexo top --once` prints on a terminal, colours and all, as an SVG that loads no font."""
    typed = f"stty cols {COLUMNS}; TERM=xterm-256color flexo top --once"
    said = lab.run(["script", "--quiet", "--return", "--command", typed, "/dev/null"]).stdout
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(said.replace("\r\n", "\n").rstrip()), no_wrap=True)
    svg = _FONTS.sub("", console.export_svg(title="flexo top", unique_id="top"))
    (IMAGES / "top.svg").write_text(svg, encoding="utf-8")


def photograph_pages(browser: Browser, lab: Lab, job: int) -> None:
    """Photograph the pages as the user sees them; Now in both themes."""
    url = f"http://127.0.0.1:{lab.ports.web}"
    for theme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 1200, "height": 700}, color_scheme="dark" if theme == "dark" else "light"
        )
        page = context.new_page()
        page.goto(str(json.loads(lab.run(["flexo", "web", "--json"], user=USER).stdout)["link"]))
        page.get_by_role("button", name="Enter as").click()
        page.wait_for_selector("#header")
        _photograph(page, f"{url}/", f"web-now-{theme}")
        if theme == "light":
            for name, path in (("job", f"/jobs/{job}"), ("mine", "/mine"), ("value", "/value")):
                _photograph(page, f"{url}{path}", f"web-{name}")
        context.close()


def _photograph(page: Page, url: str, name: str) -> None:
    page.goto(url)
    time.sleep(4)  # the page has its first update
    page.reload()
    _write(name, page.screenshot(full_page=True))


if __name__ == "__main__":
    main()
