"""`flexo logs`: which file it reads, how much of it, and until when it follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run
from says import says

from flexo_cli import app, logs
from flexo_cli.connection import Refusal
from horovod_elastic.platforms.slurm.submission import JobOutput, output_in

SHOWN = """JobId=7 JobName=sweep
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   JobState={state} Reason=None Dependency=(null)
   WorkDir=/home/ada
   StdErr=/home/ada/slurm 7.out
   StdIn=/dev/null
   StdOut=/home/ada/slurm 7.out
   Power=

"""
Course = Callable[..., None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-7.out"
    path.write_bytes(b"one\ntwo\n\xffthree\n")
    return path


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch, file: Path) -> Course:
    """What happens to the job, each time that Slurm is asked: a call, and whether it may still write."""
    looks: list[tuple[Callable[[], object], bool]] = [(lambda: None, False)]

    def where(job: int) -> JobOutput:
        change, unfinished = looks.pop(0) if len(looks) > 1 else looks[0]
        change()
        return JobOutput(file, unfinished)

    monkeypatch.setattr(logs, "where", where)
    monkeypatch.setattr(logs, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(logs, "ASK_SLURM_EVERY_S", 0.0)
    return lambda *steps: looks.__setitem__(slice(None), steps)


def test_all_of_the_file_is_printed_as_it_is(
    course: Course, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert app.run(["logs", "7"]) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\n\xffthree\n"


def test_the_last_lines_alone(course: Course, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert app.run(["logs", "7", "-n", "1"]) == 0
    assert capfdbinary.readouterr().out == b"\xffthree\n"


def test_following_prints_what_comes_and_ends_with_the_job(
    course: Course, file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def write(text: bytes) -> None:
        with file.open("ab") as out:
            out.write(text)

    course(
        (lambda: None, True),
        (lambda: write(b"four\n"), True),
        (lambda: file.write_bytes(b"anew\n"), True),
        (lambda: write(b"end\n"), False),
    )
    assert app.run(["logs", "7", "-f", "-n", "1"]) == 0
    assert capfdbinary.readouterr().out == b"\xffthree\nfour\nanew\nend\n"


def test_json_has_the_lines_their_file_and_whether_more_may_come(
    course: Course, file: Path, flexo_run: Run
) -> None:
    course((lambda: None, True))
    code, out, _ = flexo_run("logs", "7", "-n", "2", "--json")
    wanted = {
        "job_id": 7,
        "path": str(file),
        "unfinished": True,
        "lines": ["two", "\N{REPLACEMENT CHARACTER}three"],
    }
    assert (code, json.loads(out)) == (0, wanted)


def test_following_as_json_prints_an_object_for_each_line_once_it_is_complete(
    course: Course, file: Path, flexo_run: Run
) -> None:
    def write(text: bytes) -> None:
        with file.open("ab") as out:
            out.write(text)

    course(
        (lambda: None, True),
        (lambda: write(b"fo"), True),
        (lambda: write(b"ur\nfi"), True),
        (lambda: file.write_bytes(b"anew\n"), True),
        (lambda: write(b"end"), False),
    )
    code, out, _ = flexo_run("logs", "7", "-f", "-n", "0", "--json")
    lines = [json.loads(line)["line"] for line in out.splitlines()]
    assert (code, lines) == (0, ["four", "fi", "anew", "end"])


def test_following_waits_for_a_file_that_is_not_there_yet(
    course: Course, file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file.unlink()
    course((lambda: None, True), (lambda: file.write_bytes(b"begun\n"), True), (lambda: None, False))
    assert app.run(["logs", "7", "-f"]) == 0
    assert capfdbinary.readouterr().out == b"begun\n"


def test_a_file_that_cannot_be_read_is_named(course: Course, file: Path, flexo_run: Run) -> None:
    file.unlink()
    code, out, err = flexo_run("logs", "7")
    assert (code, out) == (1, "")
    assert str(file) in err


@pytest.mark.parametrize(("state", "unfinished"), [("RUNNING", True), ("PENDING", True), ("FAILED", False)])
def test_slurm_says_the_file_and_whether_the_job_may_still_write(state: str, unfinished: bool) -> None:
    found = output_in(SHOWN.format(state=state))
    assert found == JobOutput(Path("/home/ada/slurm 7.out"), unfinished)


def test_a_name_that_looks_like_a_field_names_no_file() -> None:
    forged = SHOWN.format(state="RUNNING").replace("sweep", "x\n   StdOut=/home/eve/bait")
    assert output_in(forged) == JobOutput(Path("/home/ada/slurm 7.out"), unfinished=True)


@pytest.fixture
def scontrol(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes], None]:
    """Puts a script in scontrol's place."""

    def put(script: bytes) -> None:
        (tmp_path / "scontrol").write_bytes(b"#!/bin/sh\n" + script)
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


def printing(text: bytes) -> bytes:
    """A script that prints this."""
    return b"/bin/cat <<'END'\n" + text + b"END\n"


@pytest.mark.processes
def test_a_job_without_an_output_file_is_refused(scontrol: Callable[[bytes], None]) -> None:
    scontrol(printing(b"JobId=7 JobName=bash\n   JobState=RUNNING Reason=None\n"))
    with pytest.raises(Refusal, match="only batch jobs"):
        logs.where(7)


@pytest.mark.processes
def test_slurm_is_asked_and_a_name_in_another_encoding_disturbs_nothing(
    scontrol: Callable[[bytes], None],
) -> None:
    scontrol(printing(SHOWN.format(state="TIMEOUT").encode().replace(b"sweep", b"\xff")))
    assert logs.where(7) == JobOutput(Path("/home/ada/slurm 7.out"), unfinished=False)


@pytest.mark.processes
def test_slurms_own_words_are_told_where_it_does_not_know_the_job(scontrol: Callable[[bytes], None]) -> None:
    scontrol(b"echo slurm_load_jobs error: Invalid job id specified >&2; exit 1\n")
    with pytest.raises(Refusal, match=r"job 7 .*Invalid job id"):
        logs.where(7)


def test_on_yarn_it_names_yarns_own_command(flexo_run: Run) -> None:
    code, _, err = flexo_run("logs", "application_1795625206213_0002")
    assert code == 1
    assert says(err, "yarn logs -applicationId application_1795625206213_0002")
