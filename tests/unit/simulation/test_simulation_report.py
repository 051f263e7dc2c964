"""The report: one file with everything in it, readable, escaped, and nothing fetched."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from little_simulations import trace_job
from says import says

from flexo_simulation import pictures
from flexo_simulation.about import About
from flexo_simulation.course import course_of, span_of, stretches_of
from flexo_simulation.records import End, Held, JobRecord
from flexo_simulation.report import write_report
from flexo_simulation.results import SimulatedRun, summarize

EVIL = '<script>alert(1)</script> & "$x$" \x1b[2J'


def record(number=1, at=0.0, start=100.0, end=300.0, workers=4, changes=()) -> JobRecord:
    job = trace_job(number, at=at, workers=workers)
    timeline = (Held(start, workers, 1), *(Held(when, size, 1) for when, size in changes))
    return JobRecord(job, End.FINISHED, start, end, 0.0, timeline=timeline)


NEVER_FITS = JobRecord(trace_job(8, workers=99), End.NEVER_FITS)
NEVER_STARTED = JobRecord(trace_job(9, at=50.0, workers=2), End.NEVER_STARTED)
RECORDS = (
    record(),
    record(2, at=100.0, start=200.0, end=500.0, changes=((300.0, 0), (400.0, 6))),
    NEVER_FITS,
)


def outcome(policy: str, records=RECORDS, oracle: bool = False) -> SimulatedRun:
    return SimulatedRun(policy, summarize(records, 16, oracle=oracle), tuple(records), 16)


def test_a_jobs_life_is_its_waiting_and_what_it_held():
    found = [(each.begin, each.end, each.workers) for each in stretches_of(RECORDS[1], 999.0)]
    assert found == [(100.0, 200.0, 0), (200.0, 300.0, 4), (300.0, 400.0, 0), (400.0, 500.0, 6)]
    assert [each.end for each in stretches_of(NEVER_STARTED, 999.0)] == [999.0]
    assert not list(stretches_of(NEVER_FITS, 999.0))


def test_gpus_over_time_are_what_jobs_hold_and_what_waiting_jobs_want():
    course = course_of(RECORDS, 5, span_of(RECORDS))
    assert course.edges.tolist() == [0, 100, 200, 300, 400, 500]
    assert course.used.tolist() == [0, 4, 8, 0, 6]
    assert course.wanted.tolist() == [4, 4, 0, 4, 0]


def test_nothing_is_lost_where_stretches_are_coarse():
    records = [record(n, at=float(n), start=n + 3.7, end=n + 50.2) for n in range(1, 100)]
    course = course_of(records, 7, span_of(records))
    assert (course.used * np.diff(course.edges)).sum() == pytest.approx(99 * 4 * 46.5)


class Page(HTMLParser):
    """Tags, text and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def report(tmp_path):
    about = About((f"3 jobs from {EVIL}",), ("left out: 1 job",), "flexo simulate --trace 'a b'")
    path = tmp_path / "r.html"
    write_report([outcome("fifo"), outcome("srtf", oracle=True)], about, path)
    return path.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_report_has_figures_pictures_and_the_command_that_repeats_it(report):
    page = Page(report)
    assert page.tags.count("svg") == 2 + 2 * 2
    assert "flexo simulate --trace 'a b'" in page.text
    assert "left out: 1 job" in page.text
    for words in ("completion time, mean", "waiting time", "since the first submission"):
        assert words in page.text
    assert "The 16 GPUs over time" in page.text
    assert "wanted by waiting jobs" in page.text
    assert says(page.text, "fewer workers", "asked for")


def test_a_report_says_who_is_an_oracle(report):
    text = Page(report).text
    assert "srtf (oracle)" in text
    assert "fifo (oracle)" not in text
    assert says(text, "true running times", "no scheduler")


def test_names_that_others_chose_are_data(report):
    page = Page(report)
    assert "script" not in page.tags
    assert EVIL in page.text


def test_a_report_fetches_nothing(report):
    assert all(source.startswith(("data:", "#")) for source in Page(report).sources)
    assert "default-src 'none'" in report
    assert set(re.findall(r"https?://([a-z0-9.]+)", report)) == {"www.w3.org"}  # names of SVG itself
    assert "@import" not in report


def test_a_report_is_readable_on_dark_pages_and_light_ones(report):
    assert "color-scheme: light dark" in report
    assert "currentColor" in report
    assert "#010203" not in report
    assert 'fill="#ffffff"' not in report


def test_pictures_are_whole_and_named():
    span = span_of(RECORDS)
    for svg in (
        pictures.distributions([("a", [1.0, 10.0, 1e6]), ("b", [])], "waiting time"),
        pictures.gpus_over_time(RECORDS, 16, span),
        pictures.bars(RECORDS, span),
    ):
        root = ET.fromstring(svg)
        assert root.tag.endswith("svg")
        assert root.get("aria-label")


def test_pictures_of_the_same_are_the_same():
    span = span_of(RECORDS)
    assert pictures.bars(RECORDS, span) == pictures.bars(RECORDS, span)


def test_a_large_trace_has_a_bar_for_jobs_evenly_among_them():
    records = [record(n, at=float(n)) for n in range(1, 5001)]
    shown = pictures.thinned(records)
    assert len(shown) == 160
    assert shown[0].job.job_id == 1
    assert shown[-1].job.job_id == 5000


def test_a_simulation_in_which_nothing_ran_has_a_report_too(tmp_path):
    path = tmp_path / "r.html"
    write_report([outcome("fifo", (NEVER_FITS,))], About((), (), "flexo"), path)
    assert Page(path.read_text()).tags.count("svg") == 4
