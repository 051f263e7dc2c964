"""The reader of YARN's applications: as Hadoop 3.5.0 really prints them, and with all that may be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from says import says
from yarn_dumps import BEGIN_MS, application, as_before_3_5, dump, gpu_seconds, name, nodes, satellites

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.formats import yarn_dump
from flexo_simulation.formats.accounting import AccountingDump
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.whatif import size_of
from flexo_simulation.workload import LeftOut

CAPTURED = Path(__file__).parent / "captured" / "yarn-3.5.0-history.json"
"""From a lab: jobs of one size, elastic ones, one that waited, one without GPUs, killed and failed ones."""
SKIP = ReadOptions(skip_bad=True)


@pytest.fixture
def read(tmp_path):
    """Reads text as a dump."""

    def reader(text: str, options: ReadOptions = ReadOptions()) -> AccountingDump:  # noqa: B008
        path = tmp_path / "dump.json"
        path.write_text(text)
        return yarn_dump.read_dump(path, options)

    return reader


@pytest.fixture
def refused(read):
    """The sentences with which a text is refused as a dump."""

    def refuser(text: str) -> str:
        with pytest.raises(BadTrace) as error:
            read(text)
        return str(error.value)

    return refuser


def test_a_real_dump_is_read():
    found = yarn_dump.read_dump(CAPTURED, ReadOptions())
    assert [(run.job_id[-2:], run.user, run.gpus, round(run.elapsed_s)) for run in found.runs] == [
        ("01", "ann", 4, 11),  # elastic: two to six GPUs
        ("03", "bob", 3, 5),
        ("04", "ann", 3, 7),
        ("05", "bob", 6, 16),
        ("06", "ann", 3, 22),  # four GPUs; it waited with two of them until it could have four
        ("09", "ann", 5, 36),  # elastic: two to six GPUs
        ("11", "ann", 1, 2),
        ("12", "ann", 8, 10),
    ]
    assert found.left_out == (LeftOut("held no GPU for a second", 2),)
    assert found.notes == ("applications of satellites, joined to their jobs: 2",)
    assert found.nodes == (NodeGroup(2, 4, name="n4-"),)
    assert len(yarn_dump.read(CAPTURED, ReadOptions()).jobs) == 8


def test_a_job_that_held_all_its_gpus_from_some_moment_on_waited_until_then(read):
    (run,) = read(dump([application(submit=100, wait=60, elapsed=600, gpus=8)])).runs
    assert (run.gpus, run.elapsed_s, run.waited_s) == (8, 600, 60)
    assert run.ready_at == BEGIN_MS / 1000 + 100
    assert (run.user, run.job_name) == ("ann", "train")
    assert (run.account, run.partition) == ("root.default", "root.default")


def test_gpu_seconds_and_end_are_kept_where_the_average_is_no_whole_number(read):
    (run,) = read(dump([application(wait=0, elapsed=1000, gpus=2.5)])).runs
    assert (run.gpus, run.gpus * run.elapsed_s) == (3, 2500)
    assert run.ended_at == BEGIN_MS / 1000 + 1000


def test_containers_that_end_a_little_after_their_application_are_no_further_gpu(read):
    one = application(wait=0, elapsed=1000, gpus=8.1, launchTime=BEGIN_MS)
    (run,) = read(dump([one])).runs
    assert (run.gpus, run.elapsed_s) == (8, 1000)


def test_an_application_whose_launch_is_not_known_counts_from_its_submission(read):
    for launch in (-1, 0, None):
        (run,) = read(dump([application(wait=0, elapsed=100, gpus=2, launchTime=launch)])).runs
        assert (run.gpus, run.elapsed_s) == (2, 100)


def test_an_elastic_job_and_its_satellites_are_one_job(read):
    found = read(
        dump(
            [
                application(1, wait=0, elapsed=1000, gpus=2),
                satellites(2, base=1, gpus=4, elapsed=500),
                satellites(3, base=1, gpus=0, elapsed=5),
            ]
        )
    )
    (run,) = found.runs
    assert (run.gpus, round(run.elapsed_s)) == (4, 1000)
    assert found.notes == ("applications of satellites, joined to their jobs: 2",)


def test_satellites_without_their_job_are_no_job_and_a_tag_does_not_take_another_users_gpu_time(read):
    found = read(
        dump(
            [
                application(1, wait=0, elapsed=1000, gpus=2),
                satellites(2, base=7, gpus=4, elapsed=500),
                satellites(3, base=1, gpus=4, elapsed=500, user="eve"),
                satellites(4, base=4, gpus=4, elapsed=500),
            ]
        )
    )
    assert [(run.job_id, run.gpus) for run in found.runs] == [(name(1), 2)]
    assert found.left_out == (LeftOut("hold satellites of a job that is not in the dump", 3),)


def test_what_still_runs_ends_when_the_dump_was_made(read):
    running = application(wait=0, elapsed=300, gpus=2, state="RUNNING", finishedTime=0)
    found = read(dump([running]))
    (run,) = found.runs
    assert (run.running, run.gpus, round(run.elapsed_s)) == (True, 2, 300)
    assert found.notes == ("jobs that still ran, taken to end when the dump was made: 1",)


def test_applications_that_stand_in_two_answers_count_once_as_they_ended(read):
    running = application(1, wait=0, elapsed=300, gpus=2, state="RUNNING", finishedTime=0)
    ended = application(1, wait=0, elapsed=900, gpus=2)
    for answers in ((running, ended), (ended, running)):
        found = read("\n".join(dump([each]) for each in answers))
        (run,) = found.runs
        assert (round(run.elapsed_s), run.running) == (900, False)
        assert found.left_out == (LeftOut("stand in it twice", 1),)


def test_releases_before_3_5_repeat_keys_and_write_numbers_as_texts(read):
    (run,) = read(as_before_3_5(application(gpus=4, elapsed=600))).runs
    assert (run.gpus, run.elapsed_s) == (4, 600)


def test_applications_without_gpus_and_those_of_no_time_are_left_out(read):
    found = read(
        dump(
            [
                application(1),
                application(2, gpus=0),
                application(3, resourceSecondsMap=None),
                application(4, wait=0, elapsed=600, launchTime=BEGIN_MS + 600_000),
            ]
        )
    )
    assert len(found.runs) == 1
    assert found.left_out == (LeftOut("held no GPU for a second", 2), LeftOut("ran for no time", 1))


def test_queues_are_taken_by_path_or_by_last_name(read):
    text = dump(
        [application(1, queue="root.a.gpu"), application(2, queue="gpu"), application(3, queue="root.b")]
    )
    by_name = read(text, ReadOptions(partitions=frozenset({"gpu"})))
    assert [run.job_id for run in by_name.runs] == [name(1), name(2)]
    assert by_name.left_out == (LeftOut("ran in queue root.b", 1),)
    by_path = read(text, ReadOptions(partitions=frozenset({"root.a.gpu"})))
    assert [run.job_id for run in by_path.runs] == [name(1)]


def test_nodes_of_the_dump_are_the_cluster_unless_its_size_is_said(read):
    found = read(dump([application()]) + nodes(8, 4, 8, 0))
    assert [(group.count, group.gpus) for group in found.nodes] == [(1, 4), (2, 8)]
    size = size_of(found.runs, None, None, found.nodes)
    assert (size.gpus, size.how) == (20, "the nodes that the dump has")
    assert size_of(found.runs, 3, 2, found.nodes).gpus == 6
    assert read(dump([application()])).nodes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("is empty", "flexo yarn history")),
        (" \n ", ("is empty",)),
        ("<html><body>Unauthorized</body></html>", ("is XML or HTML", "takes JSON")),
        ('{"apps":{"app":[{"id":"applic', ("dump.json:1: character 23", "cut off")),
        ("Found 3 applications\n", ("dump.json:1: character 1", "no JSON")),
        ("[" * 100_000, ("no JSON that the ResourceManager makes",)),
        ("[1, 2]", ("has no 'apps'",)),
        ('{"clusterInfo":{}}', ("has no 'apps'", "docs/reference/traces.md")),
        ('{"RemoteException":{"message":"Invalid state"}}', ("an error", "Invalid state")),
        (dump([]) + nodes(-1), ("yarn.io/gpu of a node is -1", "1024")),
        (dump([]) + nodes(True), ("yarn.io/gpu of a node is True",)),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_the_resource_manager_is_refused_with_place_and_reason(refused, text, words):
    assert says(refused(text), "dump.json", *words)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"startedTime": 0}, ("startedTime is 0", "hides", "administrator")),
        ({"startedTime": None}, ("startedTime is nothing", "administrator")),
        ({"startedTime": -5}, ("startedTime is -5", "milliseconds")),
        ({"startedTime": 1e12}, ("startedTime is 1000000000000.0", "milliseconds")),
        ({"startedTime": True}, ("startedTime is True",)),
        ({"finishedTime": 10**30}, ("finishedTime", "milliseconds")),
        ({"finishedTime": 5}, ("finishedTime is 5", "not before startedTime")),
        ({"finishedTime": 0}, ("finishedTime is 0", "not before startedTime")),
        ({"launchTime": "soon"}, ("launchTime is 'soon'", "milliseconds")),
        ({"id": None}, ("id is nothing", "a name such as")),
        ({"id": 7}, ("id is nothing",)),
        (gpu_seconds(-1), ("resourceSecondsMap is -1",)),
        (gpu_seconds("x"), ("resourceSecondsMap is 'x'",)),
        (gpu_seconds(10**14), ("at most 100,000 GPUs",)),
    ],
)  # fmt: skip
def test_an_application_that_makes_no_sense_is_named_or_skipped(read, refused, said, words):
    text = dump([application(1), application(2, **said)])
    told = refused(text)
    assert says(told, "dump.json: application 2:", *words)
    found = read(text, SKIP)
    assert [run.job_id for run in found.runs] == [name(1)]
    assert len(found.skipped) == 1


def test_no_application_with_gpus_says_where_yarn_counts_them(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(dump([application(resourceSecondsMap={"entry": {"key": "vcores", "value": "63"}})]))
    with pytest.raises(BadTrace) as error:
        yarn_dump.read(path, ReadOptions())
    assert says(str(error.value), "no run of a GPU job", "1 held no GPU", "resource-types.xml")


def test_no_application_at_all_is_said(tmp_path):
    for empty in ('{"apps":{}}', '{"apps":null}', dump([])):
        (tmp_path / "dump.json").write_text(empty)
        with pytest.raises(BadTrace, match="holds no run of a GPU job"):
            yarn_dump.read(tmp_path / "dump.json", ReadOptions())


def test_a_name_that_is_no_unicode_spoils_nothing(read):
    (run,) = read(dump([application(name="\ud800 train")])).runs
    assert run.job_name == "? train"
