"""The reader of sacct's dumps: as Slurm 22.05 really prints them, and with all that real clusters put in."""

from __future__ import annotations

from pathlib import Path

import pytest
from dumps import COLUMNS, dump, line, stamp
from says import says

from flexo_simulation.formats import sacct_dump, sacct_words
from flexo_simulation.formats.accounting import AccountingDump
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.sacct_dump import read_dump
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.workload import LeftOut

CAPTURED = Path(__file__).parent / "captured"
"""From a lab with slurmdbd: arrays, a heterogeneous job, a requeued one, a | in a name, cancelled ones."""
EXPECTED = [  # job, GPUs, nodes, waited, ran, limit, name
    ("1", 2, 1, 0, 6, 600, "a|pipe"),
    ("2", 8, 2, 7, 6, 86_400, "two nodes"),
    ("8", 3, 2, 18, 3, None, "het"),
    ("10", 1, 1, 19, 3, None, "requeued"),
    ("3_1", 1, 1, 15, 3, 31_536_000, "arr"),
    ("3_2", 1, 1, 15, 3, 31_536_000, "arr"),
    ("7", 1, 1, 0, 2, 31_536_000, "dep"),
    ("3_3", 1, 1, 0, 3, None, "arr"),
    ("13", 1, 1, 0, 6, None, "long"),
    ("14", 3, 1, 0, 35, None, "running"),
    ("10", 1, 1, 0, 15, None, "requeued"),
]
SKIP = ReadOptions(skip_bad=True)


@pytest.fixture
def read(tmp_path):
    """Reads text as a dump."""

    def reader(text: str, options: ReadOptions = ReadOptions()) -> AccountingDump:  # noqa: B008
        path = tmp_path / "dump.txt"
        path.write_text(text)
        return read_dump(path, options)

    return reader


@pytest.mark.parametrize("name", ["sacct-22.05-parsable2.txt", "sacct-22.05-parsable-with-steps.txt"])
def test_a_real_dump_is_read_with_and_without_steps_and_trailing_bars(name):
    found = read_dump(CAPTURED / name, ReadOptions())
    assert [
        (run.job_id, run.gpus, run.nodes, run.waited_s, run.elapsed_s, run.time_limit_s, run.job_name)
        for run in found.runs
    ] == EXPECTED
    assert found.left_out == (
        LeftOut("ask for no GPU", 1),
        LeftOut("ran for no time", 1),
        LeftOut("never started", 2),
    )
    assert not found.skipped


def test_a_dump_is_a_workload_of_rigid_jobs_that_run_as_long_as_they_did(tmp_path):
    path = tmp_path / "dump.txt"
    path.write_text(dump([line("5", submit=100, wait=60, elapsed=600, gpus=4, User="ö'; drop <b>")]))
    workload = sacct_dump.read(path, ReadOptions())
    (job,) = workload.jobs
    assert (job.name, job.submitted_at, job.requested_workers, job.line) == ("5", 0.0, 4, 2)
    assert job.workers.min == job.workers.max == 4
    assert job.training == LinearTraining(2400.0)
    assert (job.user, job.tenant, job.application, job.time_limit_s) == (
        "ö'; drop <b>",
        "research",
        "train",
        86_400,
    )


def test_jobs_are_ready_when_they_are_eligible_not_when_they_were_submitted(read):
    (run,) = read(dump([line(submit=0, wait=500, Eligible=stamp(400))])).runs
    assert run.waited_s == 100


@pytest.mark.parametrize("eligible", ["Unknown", "None", "", stamp(9999)])
def test_an_eligible_time_that_says_nothing_or_nonsense_makes_no_wait_negative(read, eligible):
    (run,) = read(dump([line(submit=0, wait=500, Eligible=eligible)])).runs
    assert run.waited_s == (0 if eligible == stamp(9999) else 500)


@pytest.mark.parametrize("start", ["Unknown", "None", ""])
def test_jobs_that_never_started_are_left_out(read, start):
    found = read(
        dump([line("1"), line("2", Start=start, AllocTRES="", ElapsedRaw="0", State="CANCELLED by 7")])
    )
    assert [run.job_id for run in found.runs] == ["1"]
    assert found.left_out == (LeftOut("never started", 1),)


def test_jobs_that_still_run_end_when_the_dump_was_made_and_that_is_said(read):
    found = read(dump([line(End="Unknown", State="RUNNING", elapsed=77)]))
    assert found.runs[0].elapsed_s == 77
    [note] = found.notes
    assert says(note, "still ran", 1)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("gres/gpu=4", 4),
        ("billing=12,cpu=8,gres/gpu:v100=4,gres/gpu=4,mem=64G,node=1", 4),
        ("gres/gpu:v100=4", 4),
        ("gres/gpu:a100=2,gres/gpu:v100=3", 5),
        ("gres/gpu:1g.5gb=7,gres/gpu=7", 7),
        ("cpu=1,GRES/GPU=2", 2),
        ("cpu=1,gres/gpu=1K", 1024),
        ("cpu=1,gres/gpumem=80G,gres/shard=3,gres/gpu=1", 1),
    ],
)
def test_gpus_are_counted_once_whatever_their_types(read, tres, gpus):
    (run,) = read(dump([line(AllocTRES=tres, ReqTRES=tres)])).runs
    assert run.gpus == gpus


@pytest.mark.parametrize(
    ("asked", "given", "gpu_type"),
    [
        ("gres/gpu=4", "gres/gpu:v100=4,gres/gpu=4", ""),
        ("gres/gpu:v100=4,gres/gpu=4", "gres/gpu:v100=4,gres/gpu=4", "v100"),
        ("", "gres/gpu:v100=4", "v100"),
        ("gres/gpu:a100=2,gres/gpu:v100=2", "gres/gpu:a100=2,gres/gpu:v100=2", ""),
    ],
)
def test_a_type_counts_if_it_was_asked_for(read, asked, given, gpu_type):
    (run,) = read(dump([line(ReqTRES=asked, AllocTRES=given)])).runs
    assert run.gpu_type == gpu_type


@pytest.mark.parametrize("tres", ["billing=1,cpu=4,mem=4G,node=1", "", "cpu=4,gres/gpu=0"])
def test_jobs_without_gpus_are_left_out(read, tres):
    found = read(dump([line("1"), line("2", AllocTRES=tres, ReqTRES=tres)]))
    assert found.left_out == (LeftOut("ask for no GPU", 1),)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("1440", 86_400),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
        ("0", None),
        ("INVALID", None),
    ],
)
def test_time_limits_are_minutes_or_none(read, limit, seconds):
    (run,) = read(dump([line(TimelimitRaw=limit)])).runs
    assert run.time_limit_s == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-00:00:00", 86_400),
        ("2-12", 216_000),
        ("08:30:00", 30_600),
        ("30:00", 1800),
        ("15", 900),
        ("1:2:3:4", None),
    ],
)
def test_time_limits_are_also_read_as_people_write_them(text, seconds):
    assert sacct_words.limit_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93_784),
        ("02:03:04", 7384),
        ("03:04", 184),
        ("03:04.567", 184),
        ("184", 184),
        ("x", None),
    ],
)
def test_elapsed_times_are_read_in_all_their_forms(text, seconds):
    assert sacct_words.elapsed_s(text) == seconds


def test_without_elapsed_times_the_end_tells(read):
    columns = "JobID|Submit|Start|End|AllocTRES"
    (run,) = read(f"{columns}\n7|{stamp(0)}|{stamp(10)}|{stamp(40)}|gres/gpu=2\n").runs
    assert (run.elapsed_s, run.waited_s, run.gpus, run.user, run.time_limit_s) == (30, 10, 2, "", None)


def test_times_may_be_seconds_since_the_epoch(read):
    (run,) = read("JobID|Submit|Start|Elapsed|AllocTRES\n7|1795321582|1795321589|00:01:00|gres/gpu=2\n").runs
    assert (run.started_at, run.waited_s, run.elapsed_s) == (1795321589.0, 7.0, 60)


def test_columns_may_stand_in_any_order_and_be_more(read):
    header = "AllocTRES|State|Start|Nobody knows|Elapsed|Submit|JobID"
    found = read(f"{header}\ngres/gpu=2|TIMEOUT|{stamp(5)}|x|00:09|{stamp(0)}|7\n")
    assert (found.runs[0].elapsed_s, found.runs[0].waited_s) == (9, 5)


def test_a_bar_in_a_job_name_is_understood_in_the_last_column_only(read):
    assert read(dump([line(JobName="a|b|c")])).runs[0].job_name == "a|b|c"
    with pytest.raises(BadTrace, match=r"dump\.txt:2\b.*\b7 cells\b.*\b6\b"):
        read(f"JobName|JobID|Submit|Start|Elapsed|AllocTRES\na|b|7|{stamp(0)}|{stamp(1)}|5|gres/gpu=1\n")


def test_a_windows_file_with_a_byte_order_mark_and_empty_lines_is_read(tmp_path):
    path = tmp_path / "dump.txt"
    text = dump([line("1"), "", line("2")]).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [run.job_id for run in read_dump(path, ReadOptions()).runs] == ["1", "2"]


def test_components_of_a_heterogeneous_job_are_one_job(read):
    found = read(dump([line("9+0", gpus=1, elapsed=50), line("9+1", gpus=8, elapsed=60), line("10")]))
    assert [(run.job_id, run.gpus, run.elapsed_s) for run in found.runs] == [("9", 9, 60), ("10", 4, 600)]
    [note] = found.notes
    assert says(note, "heterogeneous", 1)


def test_each_run_of_a_requeued_job_is_a_job_that_waits_from_the_end_of_the_run_before(read):
    first = line("9", submit=0, wait=10, elapsed=100, State="REQUEUED")
    second = line("9", submit=0, wait=300, elapsed=50)
    found = read(dump([second, first]))
    assert [(run.job_id, run.waited_s, run.elapsed_s) for run in found.runs] == [
        ("9", 10, 100),
        ("9", 190, 50),
    ]
    [note] = found.notes
    assert says(note, "requeued", 1)


def test_a_run_that_stands_in_two_dumps_put_together_counts_once_with_what_the_later_one_says(read):
    running = line("9", elapsed=100, State="RUNNING", End="Unknown")
    found = read(dump([running, line("9", elapsed=900), line("8")]))
    assert sorted((run.job_id, run.elapsed_s) for run in found.runs) == [("8", 600), ("9", 900)]
    assert found.left_out == (LeftOut("stand in it twice", 1),)


def test_several_clusters_are_refused_unless_one_is_chosen(read):
    text = dump([line("1", Cluster="north"), line("2", Cluster="south")])
    with pytest.raises(BadTrace, match=r"jobs of several clusters \(north, south\): say --cluster NAME"):
        read(text)
    found = read(text, ReadOptions(cluster="south"))
    assert [run.job_id for run in found.runs] == ["2"]
    assert found.left_out == (LeftOut("ran on cluster north", 1),)


def test_partitions_are_chosen_also_from_the_list_of_a_pending_job(read):
    text = dump([line("1", Partition="gpu"), line("2", Partition="cpu,gpu2"), line("3", Partition="debug")])
    found = read(text, ReadOptions(partitions=frozenset({"gpu", "gpu2"})))
    assert [run.job_id for run in found.runs] == ["1", "2"]
    assert found.left_out == (LeftOut("ran in partition debug", 1),)


BAD = {
    "gpus": line(AllocTRES="gres/gpu=many"),
    "elapsed": line(ElapsedRaw="a while"),
    "submit": line(Submit="Unknown"),
    "submit, again": line(Submit="Yesterd 14:05"),
    "start": line(Start="14:05:00"),
    "limit": line(TimelimitRaw="soon"),
    "nodes": line(NodeList="gpu[01-"),
    "nodes, again": line(NodeList="gpu[a-b]"),
    "too many nodes": line(NodeList="n[1-99999999999]"),
    "no number": line(JobID="", JobIDRaw=""),
    "cells": "1|2|3",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_line_that_makes_no_sense_is_named_or_skipped(read, bad):
    with pytest.raises(BadTrace, match=r"dump\.txt:3: ") as error:
        read(dump([line("1"), bad, line("2")]))
    assert len(error.value.problems) == 1
    found = read(dump([line("1"), bad, line("2")]), SKIP)
    assert [run.job_id for run in found.runs] == ["1", "2"]
    assert [each.line for each in found.skipped] == [3]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; ask for it with sacct --parsable2"),
        ("", "AccountingStorageType in scontrol show config"),
        ("       JobID    JobName\n------------ ----------\n", "no header with columns that a | separates"),
        ("JobID|State\n1|COMPLETED\n", "the header lacks Submit, Start"),
        ("JobID|Submit|Start|State\n", "the header has none of AllocTRES, ReqTRES"),
        ("Submit|Start|ElapsedRaw|AllocTRES\n", "the header has none of JobID, JobIDRaw"),
        (line(), "the header lacks Submit, Start"),
    ],
)
def test_what_is_no_dump_says_how_to_ask_for_one(read, text, says):
    with pytest.raises(BadTrace) as error:
        read(text)
    assert says in error.value.problems[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu07", ("gpu07",)),
        ("gpu[01-03,07]", ("gpu01", "gpu02", "gpu03", "gpu07")),
        ("a1,b[1-2]", ("a1", "b1", "b2")),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_the_names_of_nodes_are_read_as_slurm_writes_them(read, text, names):
    assert read(dump([line(NodeList=text)])).runs[0].node_names == names


def test_runs_in_other_partitions_are_kept_for_what_they_held(read):
    text = dump([line("1"), line("2", Partition="other"), line("2", Partition="other"), line("3", gpus=0)])
    found = read(text, ReadOptions(partitions=frozenset({"gpu"})))
    assert [run.job_id for run in found.runs] == ["1"]
    assert found.holders is not None
    assert [run.job_id for run in found.holders.chosen] == ["1"]
    assert [run.job_id for run in found.holders.others] == ["2"]
    assert found.holders.named


def test_a_line_of_another_partition_that_makes_no_sense_is_counted_and_refuses_nothing(read):
    text = dump([line("1"), line("2", Partition="other", TimelimitRaw="weird")])
    found = read(text, ReadOptions(partitions=frozenset({"gpu"})))
    assert [run.job_id for run in found.runs] == ["1"]
    assert any("bad lines" in note and note.endswith("1") for note in found.notes)


def test_a_partition_that_ran_nothing_is_answered_with_those_that_did(tmp_path):
    path = tmp_path / "dump.txt"
    path.write_text(dump([line("1", Partition="gpu"), line("2", Partition="debug")]))
    with pytest.raises(BadTrace) as error:
        sacct_dump.read(path, ReadOptions(partitions=frozenset({"gpus"})))
    (problem,) = error.value.problems
    assert says(problem, "1 ran in partition gpu", "1 ran in partition debug")
    assert "AccountingStorageTRES" not in problem


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_dump_in_utf_16_says_what_to_do(tmp_path, encoding):
    path = tmp_path / "dump.txt"
    mark = "" if encoding == "utf-16" else "\ufeff"
    path.write_bytes((mark + dump([line("1")])).encode(encoding))
    with pytest.raises(BadTrace, match=r"UTF-16\b.*\bUTF-8\b.*iconv -f UTF-16"):
        read_dump(path, ReadOptions())


def test_a_dump_without_gpus_says_what_slurm_needs_to_count_them(tmp_path):
    path = tmp_path / "dump.txt"
    path.write_text(dump([line(AllocTRES="cpu=1", ReqTRES="cpu=1")]))
    with pytest.raises(BadTrace, match="AccountingStorageTRES"):
        sacct_dump.read(path, ReadOptions())


def test_the_columns_of_these_dumps_are_those_that_the_documentation_asks_for():
    text = (Path(__file__).parents[3] / "docs" / "howto" / "what-if.md").read_text()
    assert f"--format={','.join(COLUMNS)}" in text
