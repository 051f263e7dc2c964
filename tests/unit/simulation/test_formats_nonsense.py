"""Whatever stands in a file, a reader reads it or says why not: nothing else is ever raised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dumps import COLUMNS, dump, line
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples
from yarn_dumps import application, gpu_seconds, nodes
from yarn_dumps import dump as yarn_dump

from flexo_simulation.formats import itp, own, philly, tiresias
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.registry import FORMATS

GOOD_LINES = {
    "own": (own.COLUMNS + own.OPTIONAL, "a,0,4,100,2,8,ann,t,bert,60,8,64,v100,,,,gcn"),
    "philly": (philly.COLUMNS, "2017-10-09 07:01:55,66.0,1"),
    "itp": (itp.COLUMNS, "a,10,2,50"),
    "tiresias": (tiresias.COLUMNS, "1,2,0,50"),
}
NUMBERS = ["", "0", "-1", "4", "1e9", "1e309", "nan", "inf", "0x1f", "²", "9" * 400]
OTHERS = ["\x00", '"', "2017-10-09", "24:00:00", "Unknown", "gres/gpu=4", "gres/gpu=", "\ud7ff", "1 2"]
STAMPS = ["0000-00-00T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
WORDS = st.sampled_from([*NUMBERS, *OTHERS, *STAMPS])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def outcome(path: Path, name: str, skip_bad: bool) -> int | None:
    """Jobs read; None where the file was refused."""
    try:
        workload = FORMATS[name].read(path, ReadOptions(skip_bad=skip_bad))
    except BadTrace:
        return None
    for job in workload.jobs:
        assert job.submitted_at >= 0
        assert job.workers.min <= job.requested_workers <= job.workers.max
        assert job.training.begin().time_left_s((), 0) > 0
    return len(workload.jobs)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("nonsense") / "t.csv"


@pytest.mark.parametrize("name", GOOD_LINES)
@given(bad=st.lists(st.lists(WORDS, max_size=18), min_size=1, max_size=4), junk=st.binary(max_size=60))
@settings(deadline=None, max_examples=examples(60))
def test_a_csv_of_nonsense_is_refused_or_skipped_and_the_good_line_is_read(path, name, bad, junk):
    columns, good = GOOD_LINES[name]
    lines = [",".join(columns), good, *(",".join(cells) for cells in bad)]
    path.write_bytes("\n".join(lines).encode("utf-8", "replace") + b"\n" + junk)
    outcome(path, name, skip_bad=False)
    read = outcome(path, name, skip_bad=True)
    assert read is not None
    assert read >= 1


@given(bad=st.lists(st.lists(WORDS, max_size=18), min_size=1, max_size=4), junk=st.binary(max_size=60))
@settings(deadline=None, max_examples=examples(100))
def test_a_dump_of_nonsense_likewise(path, bad, junk):
    text = dump([line("1"), *("|".join(cells) for cells in bad)])
    path.write_bytes(text.encode("utf-8", "replace") + junk)
    outcome(path, "sacct", skip_bad=False)
    outcome(path, "sacct", skip_bad=True)


@given(places=st.dictionaries(st.sampled_from(COLUMNS), WORDS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=examples(200))
def test_one_good_line_of_sacct_with_cells_of_nonsense_likewise(path, places):
    path.write_bytes(dump([line("1"), line("2", **places)]).encode("utf-8", "replace"))
    outcome(path, "sacct", skip_bad=True)


@given(
    values=st.dictionaries(st.sampled_from(sorted(application())), JSON, min_size=1, max_size=4), gpus=JSON
)
@settings(deadline=None, max_examples=examples(200))
def test_an_application_of_yarn_with_values_of_nonsense_likewise(path, values, gpus):
    found = [application(1), application(2, **values), application(3, **gpu_seconds(gpus))]
    path.write_text(yarn_dump(found), encoding="utf-8")
    outcome(path, "yarn", skip_bad=False)
    assert outcome(path, "yarn", skip_bad=True) is not None
    path.write_text(yarn_dump(found) + nodes(gpus), encoding="utf-8")
    outcome(path, "yarn", skip_bad=True)


@given(answer=JSON, apps=JSON)
@settings(deadline=None, max_examples=examples(60))
def test_json_that_is_none_of_yarns_likewise(path, answer, apps):
    for text in (answer, {"apps": apps}, {"apps": {"app": apps}}, {"apps": {"app": [apps]}}, {"nodes": apps}):
        path.write_text(json.dumps(text), encoding="utf-8")
        outcome(path, "yarn", skip_bad=True)


@given(junk=st.binary(max_size=200))
@settings(deadline=None, max_examples=examples(60))
def test_files_that_are_no_text_are_refused(path, junk):
    path.write_bytes(junk)
    for name in (*GOOD_LINES, "sacct", "yarn"):
        assert outcome(path, name, skip_bad=False) is None
