"""flexo.submit and flexo.Job: what they tell Slurm and flexod, and what a program hears of it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_server import serving
from busy_flexod import BusyFlexod, job

import flexo
from flexo_cli import api, waiting
from flexo_protos.v1 import admin_pb2 as pb

SLURM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$(dirname "$0")/asked"
env | grep ^SLURM_ >> "$(dirname "$0")/environment"
cat "$(dirname "$0")/answer"
[ -e "$(dirname "$0")/refuses" ] && { echo "sbatch: error: flexo: --elastic=2-8 needs -n 2" >&2; exit 1; }
exit 0
"""


class Steered(BusyFlexod):
    """Knows job 7, which trains as often as `looks` says and then has ended, and writes down its sizes."""

    def __init__(self) -> None:
        super().__init__(jobs=0)
        self.looks = 1
        self.sizes: list[tuple[str, int]] = []

    def ListJobs(self, request, context):  # noqa: N802
        self.looks -= 1
        return pb.ListJobsReply(jobs=[job(7)] if self.looks >= 0 else [])

    def ExplainJob(self, request, context):  # noqa: N802
        if self.looks >= 0:
            return pb.ExplainJobReply(headline="3 of 2-8 workers: no idle GPU", sentences=["it trains"])
        return pb.ExplainJobReply(end=pb.JobEnd(state="FAILED", exit_code="3:0", ended_at=9.0))

    def ScaleJob(self, request, context):  # noqa: N802
        return self._answer("at most", request.workers)

    def ScaleOut(self, request, context):  # noqa: N802
        return self._answer("more", request.workers)

    def ScaleIn(self, request, context):  # noqa: N802
        return self._answer("fewer", request.workers)

    def _answer(self, how: str, workers: int) -> pb.ScaleJobReply:
        self.sizes.append((how, workers))
        return pb.ScaleJobReply(text=f"job 7: {how} {workers}")


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steered]:
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    service = Steered()
    with serving(service, monkeypatch):
        yield service
    api._client.cache_clear()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose sbatch and scancel write down what they are asked."""
    for name in ("sbatch", "scancel"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "answer").write_text("4711;cluster\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def asked(slurm: Path) -> list[str]:
    return (slurm / "asked").read_text().splitlines()


@pytest.mark.processes
def test_a_submission_says_the_range_and_its_minimum_as_tasks(slurm: Path) -> None:
    submitted = flexo.submit("train.sbatch", "--lr", "0.1", elastic="2-8", gpus_per_task=1, partition="train")
    assert submitted == flexo.Job(4711)
    (line,) = asked(slurm)
    options, _, rest = line.partition(" -- ")
    assert set(options.split()) == {
        *("sbatch", "--parsable", "--ntasks=2", "--elastic=2-8", "--gpus-per-task=1", "--partition=train")
    }
    assert rest == "train.sbatch --lr 0.1"


@pytest.mark.processes
def test_without_a_range_the_script_s_own_lines_count(slurm: Path) -> None:
    flexo.submit("train.sbatch", elastic_fungible=True, hold=False)
    assert asked(slurm) == ["sbatch --parsable --elastic-fungible -- train.sbatch"]


@pytest.mark.processes
def test_a_program_inside_a_job_submits_as_outside(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "4")
    flexo.submit("train.sbatch", elastic="2-8")
    assert (slurm / "environment").read_text() == ""


@pytest.mark.processes
def test_a_refusal_has_the_plugin_s_sentence(slurm: Path) -> None:
    (slurm / "refuses").touch()
    with pytest.raises(flexo.Refusal, match="needs -n 2"):
        flexo.submit("train.sbatch", elastic="2-8")
    with pytest.raises(flexo.Refusal):
        flexo.Job(7).cancel()


@pytest.mark.processes
def test_an_answer_without_a_job_is_a_refusal(slurm: Path) -> None:
    (slurm / "answer").write_text("hello\n")
    with pytest.raises(flexo.Refusal, match="hello"):
        flexo.submit("train.sbatch", elastic="2-8")


@pytest.mark.parametrize(("elastic", "option"), [("8-2", "time"), ("two", "time"), ("2-8", "Time limit")])
def test_a_range_or_an_option_that_is_none_is_an_error_before_slurm_is_asked(
    elastic: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"8-2|two|Time limit"):
        flexo.submit("train.sbatch", elastic=elastic, **{option: 5})


@pytest.mark.processes
def test_a_job_is_cancelled_with_scancel_and_one_of_yarn_is_not(slurm: Path) -> None:
    flexo.Job(4711).cancel()
    assert asked(slurm) == ["scancel --quiet 4711"]
    with pytest.raises(flexo.Refusal, match="YARN"):
        flexo.Job(1 << 40).cancel()


def test_an_explanation_has_a_headline_and_sentences(flexod: Steered) -> None:
    why = flexo.Job(7).why()
    assert (why.headline, why.sentences) == ("3 of 2-8 workers: no idle GPU", ("it trains",))
    assert str(why) == "3 of 2-8 workers: no idle GPU\nit trains"


def test_a_size_is_written_as_on_the_command_line(flexod: Steered) -> None:
    for size in (4, "4", "+2", "-2", "auto"):
        assert flexo.Job(7).scale(size).startswith("job 7: ")
    assert flexod.sizes == [("at most", 4), ("at most", 4), ("more", 2), ("fewer", 2), ("at most", 0)]
    for wrong in (0, 2.5, "many"):
        with pytest.raises(ValueError, match="auto"):
            flexo.Job(7).scale(wrong)  # type: ignore[arg-type]


def test_a_program_waits_for_workers_and_for_the_end(flexod: Steered) -> None:
    outcome = flexo.Job(7).wait(workers=3)
    assert (outcome.workers, outcome.ended, outcome.exit_code) == (3, False, None)
    flexod.looks = 3
    outcome = flexo.Job(7).wait()
    assert (outcome.ended, outcome.state, outcome.exit_code) == (True, "FAILED", 3)
    with pytest.raises(ValueError, match="-1"):
        flexo.Job(7).wait(workers=-1)


def test_a_wait_may_be_limited(flexod: Steered) -> None:
    flexod.looks = 1_000_000
    with pytest.raises(TimeoutError, match="job 7"):
        flexo.Job(7).wait(timeout_s=0.03)


def test_a_flexod_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Steered(), monkeypatch) as address:
        pass
    api._client.cache_clear()
    with warnings.catch_warnings(), pytest.raises(flexo.Unreachable, match=address):
        flexo.Job(7, daemon=address).why()


NO_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder

blocked = ("typer", "rich", "pydantic", "structlog", "matplotlib", "numpy", "scipy", "torch")

class Blocker(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
import flexo
assert flexo.submit and flexo.Job and flexo.Busy
try:
    flexo.Job(7).why()
except (flexo.Refusal, flexo.Unreachable) as error:
    print(type(error).__name__)
"""


@pytest.mark.processes
def test_a_training_environment_without_the_daemon_s_extras_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FLEXO_DAEMON", "FLEXO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEXO_MUNGE_SOCKET", str(tmp_path / "no-munged"))
    done = subprocess.run(
        [sys.executable, "-c", NO_EXTRAS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip() in ("Refusal", "Unreachable")) == (0, True), done.stderr
