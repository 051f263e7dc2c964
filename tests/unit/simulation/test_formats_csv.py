"""Readers of CSV traces: philly, itp, tiresias, own. Good files in all guises, bad lines, jobs left out."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from says import says
from traces import needs_traces

from flexo.model.ranges import Range
from flexo_simulation.formats import itp, own, philly, tiresias
from flexo_simulation.formats.errors import BadTrace
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.registry import FORMATS
from flexo_simulation.linear_training import LinearTraining
from flexo_simulation.workload import LeftOut, Workload

SKIP = ReadOptions(skip_bad=True)
OWN_HEADER = "job_id,submit_time_s,gpus,duration_s"


@pytest.fixture
def read(tmp_path):
    """Reads text, or bytes, as a file of a format."""

    def reader(name: str, text: str | bytes, options: ReadOptions = ReadOptions()) -> Workload:  # noqa: B008
        path = tmp_path / "trace.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return FORMATS[name].read(path, options)

    return reader


def durations(workload: Workload) -> list[float]:
    found = []
    for job in workload.jobs:
        assert isinstance(job.training, LinearTraining)
        found.append(job.training.work / job.requested_workers)
    return found


def problems(error: pytest.ExceptionInfo[BadTrace]) -> str:
    return "\n".join(error.value.problems)


def test_philly_jobs_come_in_the_order_of_submission_counted_from_the_first(read):
    workload = read(
        "philly",
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
        "2017-10-09 06:13:03,2951.0,8,23608.0,6214e9\n",
    )
    assert [(job.job_id, job.submitted_at, job.requested_workers, job.tenant) for job in workload.jobs] == [
        (1, 0.0, 8, "6214e9"),
        (2, 2932.0, 1, "11cb48"),
    ]
    assert durations(workload) == [2951.0, 66.0]
    assert [job.line for job in workload.jobs] == [3, 2]
    assert all(job.workers.min == job.workers.max for job in workload.jobs)


def test_tiresias_jobs_keep_their_models_and_numbers(read):
    workload = read(
        "tiresias",
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n7,4,30,606,vgg19,164,30\n",
    )
    (job,) = workload.jobs
    assert (job.name, job.application, job.requested_workers) == ("7", "vgg19", 4)
    assert durations(workload) == [164.0]


def test_itp_jobs_without_tables_are_linear(read):
    workload = read("itp", ITP)
    assert durations(workload) == [2429.0]
    assert workload.jobs[0].application == "resnet50"


ITP = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "a-b,1932025,45775,resnet50,1933904,256,4,2429\n"
)


def test_itp_jobs_with_tables_are_as_fast_as_was_measured(read, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "resnet50.csv").write_text("global_batch_size,1,2,4\n256,1.0,1.5,2.0\n")
    (job,) = read("itp", ITP, ReadOptions(profiles=tables)).jobs
    assert isinstance(job.training, LinearTraining)
    assert job.training.work == 2 * 2429
    assert job.training.speed is not None
    assert job.training.speed.rate(1, 1) == 1.0


def test_an_itp_job_of_a_model_that_nobody_measured_is_a_bad_line(read, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "vgg16.csv").write_text("global_batch_size,1,2\n256,1.0,1.5\n")
    with pytest.raises(BadTrace) as error:
        read("itp", ITP, ReadOptions(profiles=tables))
    assert says(problems(error), "trace.csv:2", "resnet50", 256)


@pytest.mark.parametrize(
    "text",
    [
        f"{OWN_HEADER}\n5,10,2,100\n",
        "duration_s,gpus,job_id,submit_time_s\n100,2,5,10\n",
        f"\ufeff{OWN_HEADER}\n5,10,2,100\n",
        f"{OWN_HEADER}\r\n5,10,2,100\r\n",
        '"job_id","submit_time_s","gpus","duration_s"\n"5","10","2","100"\n',
        f"\n\n{OWN_HEADER}\n\n  \n5,10,2,100\n,,,\n",
        f"{OWN_HEADER},colour\n5,10,2,100,red\n",
        f"{OWN_HEADER},,\n5,10,2,100,,\n",
        " Job_ID , SUBMIT_TIME_S,gpus,duration_s\n 5 , 10 , 2.0 , 1e2 \n",
        f'# made by hand\n{OWN_HEADER}\n# a remark, with a " in it\n5,10,2,100\n',
        f"{OWN_HEADER}\n5,1970-01-01T00:00:10,2,100",
        f"{OWN_HEADER}\n5,1970-01-01 01:00:10+01:00,2,100.0\n",
    ],
)
def test_a_table_may_be_written_in_many_ways(read, text):
    (job,) = read("own", text).jobs
    assert (job.name, job.requested_workers, job.training) == ("5", 2, LinearTraining(200.0))


BAD = {
    "no number": "5,10,two,100",
    "no GPUs said": "5,10,,100",
    "less than none": "5,10,-2,100",
    "half a GPU": "5,10,2.5,100",
    "no time": "5,10,2,0",
    "negative time": "5,10,2,-3",
    "infinite": "5,10,2,inf",
    "not a number": "5,10,2,nan",
    "endless": "5,10,2,1e300",
    "python's own way to write numbers": "5,10,2,1_000",
    "when": "5,yesterday,2,100",
    "too few": "5,10,2",
    "too many": "5,10,2,100,7",
    "a quote": '5,10,"2,100',
    "other digits": "5,10,٢,100",
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_a_line_that_makes_no_sense_refuses_the_file_and_is_named(read, line):
    with pytest.raises(BadTrace) as error:
        read("own", f"{OWN_HEADER}\n1,0,1,5\n\n{line}\n2,1,1,5\n")
    (problem,) = error.value.problems
    assert ":4: " in problem
    assert problem.startswith(str(Path(problem.split(":4: ")[0])))


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_or_is_skipped_and_counted_and_the_others_are_read(read, line):
    workload = read("own", f"{OWN_HEADER}\n1,0,1,5\n{line}\n2,1,1,5\n", SKIP)
    assert [job.name for job in workload.jobs] == ["1", "2"]
    assert [bad.line for bad in workload.skipped] == [3]


def test_a_bad_line_says_what_stands_there_and_what_is_allowed(read):
    workload = read("own", f"{OWN_HEADER}\n1,0,1,5\n2,0,two,5\n3,0,1,-7\n4,0,1\n", SKIP)
    assert [bad.line for bad in workload.skipped] == [3, 4, 5]
    gpus, duration, cells = (bad.why for bad in workload.skipped)
    assert says(gpus, "gpus", "'two'", "from 0")
    assert says(duration, "duration_s", "'-7'", "above 0", 3600)
    assert says(cells, "3 cells", 4)


def test_of_very_many_bad_lines_ten_are_named(read):
    with pytest.raises(BadTrace) as error:
        read("own", f"{OWN_HEADER}\n" + "x,x,x,x\n" * 25)
    assert len(error.value.problems) == 11
    assert error.value.problems[-1].endswith("15 more lines make no sense")


def test_jobs_without_gpus_are_left_out_and_counted(read):
    workload = read("own", f"{OWN_HEADER}\n1,0,0,5\n2,3,1,5\n3,4,0,5\n")
    assert [job.name for job in workload.jobs] == ["2"]
    assert workload.left_out == (LeftOut("ask for no GPU", 2),)
    assert workload.jobs[0].submitted_at == 0.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; it takes a header with job_id, submit_time_s, gpus, duration_s"),
        ("job_id,gpus\n1,2\n", ":1: the header lacks submit_time_s, duration_s; it has job_id, gpus"),
        (f"{OWN_HEADER},GPUS\n1,0,1,5,2\n", ":1: the header has gpus twice"),
        (f"{OWN_HEADER}\n", "holds no job to simulate"),
        (f"{OWN_HEADER}\n1,0,0,5\n", "holds no job to simulate: of its jobs, 1 ask for no GPU"),
        ("1,0,1,5\n2,0,1,5\n", "the header lacks"),
        ("job_id;submit_time_s;gpus;duration_s\n", "the header lacks"),
    ],
)
def test_a_file_that_holds_nothing_says_why(read, text, says):
    with pytest.raises(BadTrace) as error:
        read("own", text)
    assert says in problems(error)


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(BadTrace, match=r"nowhere\.csv: cannot be read: No such file"):
        philly.read(tmp_path / "nowhere.csv", ReadOptions())


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(BadTrace, match="Is a directory"):
        itp.read(tmp_path, ReadOptions())


def test_bytes_that_are_no_text_spoil_no_line(read):
    workload = read("own", f"{OWN_HEADER},user\n1,0,1,5,".encode() + b"m\xfcller\n")
    assert workload.jobs[0].user == "m\ufffdller"


def test_own_jobs_say_all_that_there_is_to_say(read):
    header = f"{OWN_HEADER},min_gpus,max_gpus,user,tenant,application,time_limit_s,batch_min,batch_max"
    header += ",gpu_type,opportunistic,fungible,heterogeneous,model"
    line = "j-1,0,4,60,2,8,ann,research,bert,3600,64,512,v100,yes,True,,ResNet-50"
    (job,) = read("own", f"{header}\n{line}\n").jobs
    assert job.model == "ResNet-50"
    assert job.workers == Range(2, 8)
    assert job.batch == Range(64, 512)
    assert (job.user, job.tenant, job.application, job.time_limit_s) == ("ann", "research", "bert", 3600)
    assert (job.shape.gpu_type, job.opportunistic, job.fungible, job.heterogeneous) == (
        "v100",
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("4,60,5,8,,", "gpus is 4, min_gpus 5, max_gpus 8: gpus must lie between the two"),
        ("4,60,1,3,,", "gpus must lie between"),
        ("4,60,0,8,,", "min_gpus is '0': it takes a whole number from 1"),
        ("4,60,,,64,", "batch_max is nothing: it takes a whole number from 1"),
        ("4,60,,,64,32", "batch_min is 64, batch_max 32"),
    ],
)
def test_own_ranges_that_cannot_be_are_refused(read, cells, says):
    with pytest.raises(BadTrace) as error:
        read("own", f"{OWN_HEADER},min_gpus,max_gpus,batch_min,batch_max\n1,0,{cells}\n")
    assert says in problems(error)


def test_what_is_written_is_read_again_the_same(read, tmp_path):
    header = f"{OWN_HEADER},min_gpus,max_gpus,user,tenant,application,time_limit_s,batch_min,batch_max"
    header += ",gpu_type,opportunistic,fungible,heterogeneous,model"
    before = read(
        "own",
        f'{header}\nx,3,4,60.5,2,8,"a, b",t,bert,3600,64,512,v100,true,,,\n'
        "y,7.25,1,9,,,,,,,,,,,true,true,gcn\n",
    )
    file = io.StringIO()
    own.write(before, file, ("made up", "by a test"))
    assert file.getvalue().startswith("# made up\n# by a test\njob_id,")
    after = read("own", file.getvalue())
    assert [replace(job, line=0) for job in after.jobs] == [replace(job, line=0) for job in before.jobs]


def test_a_trace_comes_through_the_standard_input(monkeypatch):
    class Input:
        buffer = io.BytesIO(b"job_id,num_gpu,submit_time,duration\n1,2,0,5\n")

    monkeypatch.setattr("sys.stdin", Input)
    workload = tiresias.read(Path("-"), ReadOptions())
    assert workload.name == "standard input"
    assert len(workload.jobs) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "path", "jobs", "gpus"),
    [
        ("philly", "philly/philly.csv", 82_247, 128),
        ("itp", "itp/cluster10.csv", 260, 16),
        ("tiresias", "tiresias/60_job.csv", 60, 8),
    ],
)
def test_the_published_traces_are_read_whole(name, path, jobs, gpus):
    workload = FORMATS[name].read(needs_traces(path), ReadOptions())
    assert len(workload.jobs) == jobs
    assert max(job.requested_workers for job in workload.jobs) == gpus
    assert not workload.skipped
    assert not workload.left_out
    assert [job.job_id for job in workload.jobs] == list(range(1, jobs + 1))
