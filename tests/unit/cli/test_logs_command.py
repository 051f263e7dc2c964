"""`flexo logs`: which file it reads, how much of it, and until when it follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run
from says import says

from flexo_cli import app, logs
from flexo_cli.connection import Refusal
from flexo_cli.logs import Output, output_in

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

    def where(job: int) -> Output:
        change, unfinished = looks.pop(0) if len(looks) > 1 else looks[0]
        change()
        return Output(file, unfinished)

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
    found = output_in(SHOWN.format(state=state), 7)
    assert found == Output(Path("/home/ada/slurm 7.out"), unfinished)


def test_a_name_that_looks_like_a_field_names_no_file() -> None:
    forged = SHOWN.format(state="RUNNING").replace("sweep", "x\n   StdOut=/home/eve/bait")
    assert output_in(forged, 7).path == Path("/home/ada/slurm 7.out")


def test_a_job_without_an_output_file_is_refused() -> None:
    with pytest.raises(Refusal, match="only batch jobs"):
        output_in("JobId=7 JobName=bash\n   JobState=RUNNING Reason=None\n", 7)


@pytest.mark.processes
def test_slurm_is_asked_and_a_name_in_another_encoding_disturbs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol = tmp_path / "scontrol"
    shown = SHOWN.format(state="TIMEOUT").encode().replace(b"sweep", b"\xff")
    scontrol.write_bytes(b"#!/bin/sh\n/bin/cat <<'END'\n" + shown + b"END\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert logs.where(7) == Output(Path("/home/ada/slurm 7.out"), unfinished=False)


@pytest.mark.processes
def test_slurms_own_words_are_told_where_it_does_not_know_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2; exit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refusal, match=r"job 7 .*Invalid job id"):
        logs.where(7)


def test_on_yarn_it_names_yarns_own_command(flexo_run: Run) -> None:
    code, _, err = flexo_run("logs", "application_1795625206213_0002")
    assert code == 1
    assert says(err, "yarn logs -applicationId application_1795625206213_0002")
