"""The `flexo` command against an in-process AdminService: output, JSON keys, exit codes, delegation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from admin_server import SayingWho, serving
from command_line import Run
from says import says

import flexo
from flexo_cli import connection, job_words, steering
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.flexods import DEFAULT_ADDRESS
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

HEADLINE = "5 of 2-8 workers: no idle a100"
REASON = "it has all that is idle"

OVERLAPPING = ("top", "jobs", "status", "lab status")


def _point(workers: int, efficiency: float) -> admin_pb2.ScalingPoint:
    return admin_pb2.ScalingPoint(
        workers=workers,
        samples_per_s=100.0 * workers,
        step_s=0.1,
        sync_s=0.01,
        efficiency=efficiency,
        batches=20,
    )


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """Answers as flexod would of one job, 7, and refuses the rest."""

    def __init__(self) -> None:
        self.credentials: list[str] = []
        self.scaled: list[tuple[int, int]] = []
        self.asked: list[object] = []
        self.busy_for = 0
        """So many calls are told to come again."""
        self.old = False
        """Whether it is a flexod that does not know nodes for growth."""
        self.user = "ann"
        self.aggregation: admin_pb2.JobAggregation | None = None

    def GetStatus(self, request, context):  # noqa: N802
        self._note(context)
        return admin_pb2.GetStatusReply(
            flexod_version="0.1.0", slurm_version="22.05.8", cluster="lab", policy="greedy", nodes=4, gpus=16,
            gpus_idle=3, gpus_in_satellites=5, elastic_jobs=2, leaders=1, interval_s=5, dry_run=True,
            slow_gpus=[admin_pb2.SlowGpuView(node="n3", gpus=[2], ratio=1.8, job_id=7, until_at=1.7e9)],
        )  # fmt: skip

    def ListJobs(self, request, context):  # noqa: N802
        self._note(context)
        grant = admin_pb2.GrantView(grant_id="g1", node="n2", workers=3, state="training", slurm_job_id=8)
        job = admin_pb2.ElasticJob(
            job_id=7, user=self.user, min=2, max=8, workers=5, granted=5, gpus_per_worker=1, attached=True,
            scalable=True, base_nodes=["n1"], grants=[grant], scaling=[_point(1, 1.0)], batch=64,
            progress=0.42, left_s=7300, left_by="history", aggregation=self.aggregation,
        )  # fmt: skip
        return admin_pb2.ListJobsReply(jobs=[job])

    def ExplainJob(self, request, context):  # noqa: N802
        if request.job_id == 6:
            end = admin_pb2.JobEnd(state="FAILED", exit_code="3:0", ended_at=1_700_000_000, base_workers=2)
            return admin_pb2.ExplainJobReply(sentences=["the job ended: FAILED"], end=end)
        if request.job_id != 7:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no elastic job {request.job_id}")
        event = admin_pb2.Event(at=1_700_000_000, kind="grow", text="3 workers on n2")
        return admin_pb2.ExplainJobReply(headline=HEADLINE, sentences=[REASON], events=[event])

    def ScaleJob(self, request, context):  # noqa: N802
        if request.job_id != 7:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "only the owner may")
        self.scaled.append((request.job_id, request.workers))
        return admin_pb2.ScaleJobReply(text="done")

    def _steered(self, request, context):
        if self.busy_for:
            self.busy_for -= 1
            context.abort(grpc.StatusCode.ABORTED, "job 7 is being resized: try again later")
        self.asked.append(request)

    def ScaleOut(self, request, context):  # noqa: N802
        self._steered(request, context)
        return admin_pb2.ScaleJobReply(text="grows", nodes=() if self.old else request.nodes)

    def ScaleIn(self, request, context):  # noqa: N802
        self._steered(request, context)
        return admin_pb2.ScaleJobReply(text="shrinks")

    def CheckpointJob(self, request, context):  # noqa: N802
        if request.path.startswith("/full"):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "/full/x cannot be written: No space left")
        self._steered(request, context)
        return admin_pb2.CheckpointJobReply(text=f"written to {request.path} on n1")

    def ProfileJob(self, request, context):  # noqa: N802
        self._steered(request, context)
        yield admin_pb2.ProfileJobReply(text="profile of 1-2 workers begins")
        yield admin_pb2.ProfileJobReply(points=[_point(2, 0.0)])
        points = [_point(1, 1.0), _point(2, 0.9)]
        yield admin_pb2.ProfileJobReply(text="more than 2 workers", points=points, done=True)

    def _note(self, context: grpc.ServicerContext) -> None:
        self.credentials += [value for key, value in context.invocation_metadata() if key == METADATA_KEY]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    service = Admin()
    with serving(service, monkeypatch):
        yield service


def test_status_shows_what_flexod_sees_and_says_that_it_is_a_dry_run(admin: Admin, flexo_run: Run) -> None:
    code, out, _ = flexo_run("status")
    assert code == 0
    assert says(out, "16 on 4 nodes", "3 idle", "5 in satellites")
    assert "dry run" in out
    assert "Slurm 22.05.8" in out


def test_every_call_carries_a_credential_made_for_its_own_method(admin: Admin, flexo_run: Run) -> None:
    flexo_run("status")
    flexo_run("jobs")
    assert admin.credentials == ["me /flexo.v1.AdminService/GetStatus", "me /flexo.v1.AdminService/ListJobs"]


def test_status_as_json_has_every_field_of_the_reply(admin: Admin, flexo_run: Run) -> None:
    code, out, _ = flexo_run("status", "--json")
    assert code == 0
    said = json.loads(out)
    assert set(said) == {field.name for field in admin_pb2.GetStatusReply.DESCRIPTOR.fields}
    assert said["gpus_idle"] == 3
    assert said["trouble"] == ""


def test_jobs_are_an_aligned_table_without_colours_when_piped(admin: Admin, flexo_run: Run) -> None:
    code, out, _ = flexo_run("jobs")
    assert code == 0
    head, row = out.splitlines()
    assert row.split()[:3] == ["7", "ann", "5/2-8"]
    assert head.index("USER") == row.index("ann")
    assert row.endswith("training   42%  ~2 h  n1 n2+3")
    assert head.index("DONE") <= row.index("42%")
    assert "\x1b" not in out


def test_jobs_as_json_keep_their_grants(admin: Admin, flexo_run: Run) -> None:
    _, out, _ = flexo_run("jobs", "--json")
    (job,) = json.loads(out)["jobs"]
    assert (job["job_id"], job["workers"], job["wanted"]) == (7, 5, None)
    assert job["grants"][0]["node"] == "n2"
    assert (job["progress"], job["left_s"], job["left_by"]) == (0.42, 7300.0, "history")


def test_jobs_say_whose_aggregators_sum_only_if_any_do(admin: Admin, flexo_run: Run) -> None:
    assert "AGGREGATORS" not in flexo_run("jobs")[1]
    assert json.loads(flexo_run("jobs", "--json")[1])["jobs"][0]["aggregation"] is None
    shares = [admin_pb2.JobAggregator(name="c1:7000", share=1)]
    admin.aggregation = admin_pb2.JobAggregation(
        wants_pool=True, state="shares", aggregators=shares, alone_s=0.19, now_s=0.2, loss=0.05
    )
    head, row = flexo_run("jobs")[1].splitlines()
    assert row[head.index("AGGREGATORS") :].split()[:2] == ["pool", "-5%"]
    assert json.loads(flexo_run("jobs", "--json")[1])["jobs"][0]["aggregation"] == {
        "auto": False, "wants_pool": True, "satellites": 0, "grants": [], "state": "shares",
        "aggregators": [{"name": "c1:7000", "share": 1}],
        "alone_s": 0.19, "now_s": 0.2, "loss": 0.05,
    }  # fmt: skip


def test_jobs_name_the_nodes_of_aggregators_in_satellites(admin: Admin, flexo_run: Run) -> None:
    grant = admin_pb2.GrantView(grant_id="g2", node="c1", state="training", slurm_job_id=9)
    admin.aggregation = admin_pb2.JobAggregation(satellites=1, grants=[grant])
    assert "satellites c1" in flexo_run("jobs")[1]
    (told,) = json.loads(flexo_run("jobs", "--json")[1])["jobs"][0]["aggregation"]["grants"]
    assert (told["node"], told["state"], told["workers"], told["slurm_job_id"]) == ("c1", "training", 0, 9)


def test_names_from_outside_cannot_steer_the_terminal_or_use_markup(admin: Admin, flexo_run: Run) -> None:
    admin.user = "\x1b]0;owned\x07[red]ann\u202e"
    _, out, _ = flexo_run("jobs")
    assert "\\x1b]0;owned\\x07[red]ann\\u202e" in out
    assert not set(out) & {"\x1b", "\x07", "\u202e"}


def test_why_gives_the_reasons_and_the_last_events(admin: Admin, flexo_run: Run) -> None:
    code, out, _ = flexo_run("why", "7")
    assert code == 0
    assert out.startswith(f"{HEADLINE}\n{REASON}\n")
    assert json.loads(flexo_run("why", "7", "--json")[1])["headline"] == HEADLINE
    assert "3 workers on n2" in out


def test_why_says_when_and_how_a_job_ended_to_people_and_to_scripts(admin: Admin, flexo_run: Run) -> None:
    code, out, _ = flexo_run("why", "6")
    assert code == 0
    assert "2023-11-1" in out.splitlines()[0]
    assert out.startswith("FAILED")
    assert "flexo logs 6" in out
    code, out, _ = flexo_run("why", "6", "--json")
    assert (code, json.loads(out)["end"]) == (
        0,
        {
            "restart_count": 0,
            "state": "FAILED",
            "exit_code": "3:0",
            "started_at": None,
            "ended_at": 1_700_000_000,
            "known_by": None,
            "base_workers": 2,
            "most_workers": None,
            "gpus_per_worker": None,
            "resizes": 0,
            "paused_s": 0.0,
            "tried_worker_s": 0.0,
        },
    )
    assert json.loads(flexo_run("why", "7", "--json")[1])["end"] is None


def test_a_job_that_is_not_there_is_exit_1_with_the_daemons_words(admin: Admin, flexo_run: Run) -> None:
    assert flexo_run("why", "9") == (1, "", "flexo: no elastic job 9\n")


def test_scale_sends_the_number_and_auto_is_zero(admin: Admin, flexo_run: Run) -> None:
    assert flexo_run("scale", "7", "4") == (0, "done\n", "")
    assert flexo_run("scale", "7", "auto")[0] == 0
    assert admin.scaled == [(7, 4), (7, 0)]


def test_what_flexod_answers_to_steering_is_there_as_json(admin: Admin, flexo_run: Run) -> None:
    for line, text in (
        (["scale", "7", "4"], "done"),
        (["scale", "7", "+2"], "grows"),
        (["scale", "7", "-2"], "shrinks"),
        (["checkpoint", "7", "/a/b"], "written to /a/b on n1"),
    ):
        code, out, _ = flexo_run(*line, "--json")
        assert (code, json.loads(out)) == (0, {"job_id": 7, "text": text})


def test_a_refused_scale_is_exit_1(admin: Admin, flexo_run: Run) -> None:
    assert flexo_run("scale", "9", "4") == (1, "", "flexo: only the owner may\n")


def test_a_size_with_a_sign_is_a_change_and_a_node_says_where(admin: Admin, flexo_run: Run) -> None:
    assert flexo_run("scale", "7", "+2") == (0, "grows\n", "")
    assert flexo_run("scale", "7", "-12") == (0, "shrinks\n", "")
    assert flexo_run("scale", "7", "--node", "n2") == (0, "shrinks\n", "")
    assert flexo_run("scale", "7", "--node", "n2", "--node", "n4") == (0, "shrinks\n", "")
    out, fewer, there, at_both = admin.asked
    assert (out.job_id, out.workers, fewer.workers, there.workers, there.node) == (7, 2, 12, 0, "n2")
    assert (at_both.node, list(at_both.nodes), list(there.nodes)) == ("n2", ["n4"], [])


def test_a_job_grows_on_named_nodes_and_an_older_flexod_that_does_not_know_them_is_told(
    admin: Admin, flexo_run: Run
) -> None:
    assert flexo_run("scale", "7", "+2", "--node", "n2", "--node", "n4") == (0, "grows\n", "")
    assert list(admin.asked[-1].nodes) == ["n2", "n4"]
    admin.old = True
    code, out, err = flexo_run("scale", "7", "+2", "--node", "n2")
    assert (code, out) == (1, "")
    assert says(err, "n2", "on any node", "flexo scale 7 -2")


def test_the_old_names_of_scale_work_and_name_the_new_one(admin: Admin, flexo_run: Run) -> None:
    for line, text, new in (
        (["scale-out", "7", "2"], "grows\n", "flexo scale 7 +2"),
        (["scale-in", "7", "2"], "shrinks\n", "flexo scale 7 -2"),
        (["scale-in", "7", "--node", "n2"], "shrinks\n", "flexo scale 7 --node n2"),
    ):
        code, out, err = flexo_run(*line)
        assert (code, out) == (0, text)
        assert err.count("\n") == 1
        assert new in err
    out, fewer, there = admin.asked
    assert (out.job_id, out.workers, fewer.workers, there.workers, there.node) == (7, 2, 2, 0, "n2")
    assert "scale-out" not in flexo_run("--help")[1]


@pytest.mark.parametrize(
    "line",
    [
        ["scale", "7"],
        ["scale", "7", "+0"],
        ["scale", "7", "-2", "--node", "n2"],
        ["scale", "7", "4", "--node", "n2"],
        ["scale-out", "7"],
        ["scale-in", "7"],
        ["profile", "7", "--min", "2"],
        ["profile", "7", "--min", "4", "--max", "2"],
        ["checkpoint", "7"],
    ],
)
def test_steering_that_says_too_little_or_too_much_is_a_usage_error(
    admin: Admin, flexo_run: Run, line: list[str]
) -> None:
    assert flexo_run(*line)[0] == 2
    assert admin.asked == []


def test_a_job_that_is_busy_is_exit_4_with_the_daemons_words(admin: Admin, flexo_run: Run) -> None:
    admin.busy_for = 4
    for line in (["scale", "7", "+1"], ["scale", "7", "-1"], ["checkpoint", "7", "/a/b"]):
        assert flexo_run(*line) == (4, "", "flexo: job 7 is being resized: try again later\n")
    assert flexo_run("profile", "7", "--min", "1", "--max", "2")[0] == 4


def test_with_wait_a_busy_job_is_asked_again_and_said_to_be_so_once(
    admin: Admin, flexo_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "RETRY_S", 0.01)
    admin.busy_for = 3
    code, out, err = flexo_run("scale", "7", "+1", "--wait")
    assert (code, out, err) == (0, "grows\n", "flexo: job 7 is being resized: try again later\n")


def test_a_profile_is_a_table_and_its_progress_is_told_on_the_error_output(
    admin: Admin, flexo_run: Run
) -> None:
    code, out, err = flexo_run("profile", "7", "--min", "1", "--max", "8", "--batches", "9")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["WORKERS", "SAMPLES/S", "STEP", "S", "SYNC", "S", "EFFICIENCY"],
        ["1", "100.0", "0.1000", "0.0100", "1.00"],
        ["2", "200.0", "0.1000", "0.0100", "0.90"],
    ]
    assert "begins" in err
    assert "2 workers: 0.1 s a step" in err
    assert "left out: more than 2 workers" in err
    (asked,) = admin.asked
    assert (asked.min, asked.max, asked.batches) == (1, 8, 9)


def test_a_profile_as_json_is_one_document(admin: Admin, flexo_run: Run) -> None:
    _, out, _ = flexo_run("profile", "7", "--min", "1", "--max", "8", "--json")
    found = json.loads(out)
    assert [point["efficiency"] for point in found["points"]] == [1.0, 0.9]
    assert found["left_out"] == "more than 2 workers"


def test_a_checkpoint_s_path_may_be_relative_to_where_the_command_is_called(
    admin: Admin, flexo_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flexo_run("checkpoint", "7", "model.pt") == (0, f"written to {tmp_path}/model.pt on n1\n", "")
    assert flexo_run("checkpoint", "7", "/full/x")[0] == 1


def test_slow_gpus_stand_in_the_status(admin: Admin, flexo_run: Run) -> None:
    _, out, _ = flexo_run("status")
    assert "n3: GPU 2, 1.8 times as slow as others of job 7; left alone until" in out
    _, out, _ = flexo_run("status", "--json")
    assert json.loads(out)["slow_gpus"][0]["gpus"] == [2]


def test_what_a_profile_measured_stands_in_the_jobs_as_json(admin: Admin, flexo_run: Run) -> None:
    _, out, _ = flexo_run("jobs", "--json")
    (job,) = json.loads(out)["jobs"]
    assert (job["scaling"][0]["workers"], job["batch"], job["pending_command"]) == (1, 64, None)


@pytest.mark.parametrize("workers", ["0", "--3", "+-3", "many", "", "4.5", "²", "99999999"])
def test_a_scale_that_is_no_number_of_workers_is_a_usage_error(
    admin: Admin, flexo_run: Run, workers: str
) -> None:
    assert flexo_run("scale", "7", "--", workers)[0] == 2
    assert admin.scaled == []


@pytest.mark.parametrize("line", [["why"], ["why", "x"], ["why", "0"], ["status", "extra"], ["dance"]])
def test_a_wrong_command_line_is_exit_2(flexo_run: Run, line: list[str]) -> None:
    assert flexo_run(*line)[0] == 2


def test_an_unreachable_daemon_is_exit_3_with_address_and_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, flexo_run: Run
) -> None:
    monkeypatch.setattr(connection, "new_authenticator", SayingWho)
    monkeypatch.setenv("FLEXO_DAEMON", "127.0.0.1:1")
    code, out, err = flexo_run("status")
    assert (code, out) == (3, "")
    assert "127.0.0.1:1 (from $FLEXO_DAEMON)" in err
    assert "refused" in err
    assert err.count("\n") == 1


def test_without_munged_a_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, flexo_run: Run, tmp_path: Path
) -> None:
    monkeypatch.delenv("FLEXO_AUTHENTICATION", raising=False)
    monkeypatch.setenv("FLEXO_MUNGE_SOCKET", str(tmp_path / "no-munged"))
    monkeypatch.setenv("FLEXO_DAEMON", "127.0.0.1:1")
    code, out, err = flexo_run("jobs")
    assert (code, out) == (1, "")
    assert says(err, "host of the cluster", "start munged", "$FLEXO_MUNGE_SOCKET", "flexo lab shell")


def test_a_scheme_without_what_it_needs_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, flexo_run: Run
) -> None:
    monkeypatch.setenv("FLEXO_AUTHENTICATION", "job-secret")
    monkeypatch.delenv("FLEXO_SECRET_FILE", raising=False)
    code, _, err = flexo_run("jobs", "--daemon", "127.0.0.1:1")
    assert (code, err.count("\n")) == (1, 1)
    assert "FLEXO_SECRET_FILE" in err


def test_the_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXO_DAEMON", "a:1")
    assert connection.find_address("b:2").target == "b:2"
    assert connection.find_address(None).target == "a:1"


def test_without_option_and_environment_the_configuration_file_names_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    file = tmp_path / "flexo.toml"
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    file.write_text('[service]\naddress = "ctl:7"\n')
    assert connection.find_address(None) == connection.Address("ctl:7", f"[service] address in {file}")


@pytest.mark.parametrize("content", [None, "", "[service]\n", "service = 3"])
def test_without_any_address_the_default_is_tried_and_the_file_that_has_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    file = tmp_path / "flexo.toml"
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    if content is not None:
        file.write_text(content)
    address = connection.find_address(None)
    assert address.target == DEFAULT_ADDRESS
    assert str(file) in address.source


@pytest.mark.parametrize("content", ["][", "[service]\naddress = 7"])
def test_a_configuration_that_cannot_be_understood_is_exit_3_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flexo_run: Run, content: str
) -> None:
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    file = tmp_path / "flexo.toml"
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    file.write_text(content)
    code, _, err = flexo_run("jobs")
    assert code == 3
    assert str(file) in err


@pytest.mark.parametrize("name", OVERLAPPING)
def test_help_of_commands_that_overlap_says_when_to_use_which(flexo_run: Run, name: str) -> None:
    _, out, _ = flexo_run(*name.split(), "--help")
    first = " ".join(out.partition("Options")[0].split())
    assert "Use it" in first
    others = [other for other in OVERLAPPING if other not in (name, "lab status")]
    assert [other for other in others if f"flexo {other}" not in first] == []


def test_version_prints_the_version(flexo_run: Run) -> None:
    assert flexo_run("version") == (0, f"flexo {flexo.__version__}\n", "")


def test_help_lists_the_commands_that_live_elsewhere(flexo_run: Run) -> None:
    _, out, _ = flexo_run("--help")
    assert all(
        f" {command} " in out for command in ("aggregator", "run", "hosts", "lab", "scale", "share", "why")
    )


_DELEGATION = """
import sys, types
blocked = {blocked!r}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"blocked {{name}}", name=name)
sys.meta_path.insert(0, Block())
room = types.ModuleType("horovod_elastic.{module}")
def take(arguments):
    print(arguments)
    return 7
room.main = take
sys.modules["horovod_elastic.{module}"] = room
sys.argv = ["flexo", *{arguments!r}]
from flexo_cli import main
main()
"""


_ALL = ("typer", "rich", "pydantic", "structlog", "matplotlib", "grpc")


def without_daemons_packages(
    *line: str, module: str = "launcher", blocked: tuple[str, ...] = _ALL
) -> subprocess.CompletedProcess[str]:
    """A command line of flexo in an environment that has none of them."""
    script = _DELEGATION.format(module=module, arguments=list(line), blocked=blocked)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("run", "launcher"),
        ("hosts", "hosts"),
        ("share", "sharing.command"),
        ("aggregator", "pool_aggregator"),
    ],
)
def test_commands_of_jobs_pass_all_arguments_on_and_need_none_of_the_daemons_packages(
    command: str, module: str
) -> None:
    arguments = ["python", "train.py", "--help", "--", "--json", "-x=1"]
    done = without_daemons_packages(command, *arguments, module=module)
    assert done.stdout == f"{arguments}\n", done.stderr
    assert done.returncode == 7


@pytest.mark.processes
def test_a_command_without_the_daemons_packages_names_what_to_install() -> None:
    done = without_daemons_packages("status")
    assert done.returncode == 1
    assert "needs the Python package" in done.stderr
    wheel = f"flexo-{flexo.__version__}-py3-none-any.whl"
    assert f"{shlex.quote(sys.executable)} -m pip install {wheel}" in done.stderr
    assert "make wheel" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.processes
def test_a_package_that_only_sites_need_is_said_to_come_with_their_wheel() -> None:
    done = without_daemons_packages("doctor", blocked=("pydantic",))
    assert done.returncode == 1
    assert f"flexo_site-{flexo.__version__}-py3-none-any.whl" in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("line", [["--version"], ["version"]])
def test_the_version_is_there_without_the_daemons_packages(line: list[str]) -> None:
    done = without_daemons_packages(*line)
    assert (done.returncode, done.stdout) == (0, f"flexo {flexo.__version__}\n")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (["-h"], "flexo [OPTIONS] COMMAND"),
        (["help"], "flexo [OPTIONS] COMMAND"),
        (["help", "lab", "up"], "flexo lab up"),
        (["lab", "-h"], "flexo lab"),
        (["lab", "up", "-h"], "flexo lab up"),
        (["jobs", "-h"], "flexo jobs"),
        (["simulate", "-h"], "flexo simulate"),
        (["help", "run"], "usage: flexo run"),
    ],
)
def test_help_is_found_under_each_name_that_it_usually_has(line: list[str], shown: str) -> None:
    flexo_command = Path(sys.executable).parent / "flexo"
    done = subprocess.run([str(flexo_command), *line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("line", [["--version"], ["--help"], ["help", "run"]])
def test_a_reader_that_has_left_is_no_error_to_complain_of(line: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    flexo_command = Path(sys.executable).parent / "flexo"
    try:
        done = subprocess.run([str(flexo_command), *line], stdout=theirs, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(theirs)
    assert done.stderr == ""


def test_help_lists_the_option_that_prints_the_version(flexo_run: Run) -> None:
    code, out, _ = flexo_run("--version")
    assert (code, out) == (0, f"flexo {flexo.__version__}\n")
    assert "--version" in flexo_run("--help")[1]


def test_help_is_in_sections_and_shows_words_instead_of_types_and_ranges(flexo_run: Run) -> None:
    _, out, _ = flexo_run("--help")
    titles = ["Your jobs", "In a job script", "Administration", "Planning", "Lab"]
    assert all(f" {title} " in out for title in titles)
    assert out.index("Your jobs") < out.index(" scale ") < out.index("In a job script") < out.index(" run ")
    for command in (["simulate"], ["profile"], ["lab", "up"], ["lab"]):
        shown = flexo_run(*command, "--help")[1]
        assert not re.search(r"<\w+|x>=|<=x", shown), shown


def test_a_value_out_of_range_is_told_the_range(flexo_run: Run) -> None:
    code, _, err = flexo_run("profile", "7", "--min", "0", "--max", "2")
    assert code == 2
    assert "equal to 1" in err


def test_status_says_what_the_cluster_hides_from_its_reader_and_is_silent_otherwise() -> None:
    assert job_words.hidden(admin_pb2.Privacy(jobs=True, nodes=True)) == []
    ((_, said),) = job_words.hidden(admin_pb2.Privacy(jobs=True, nodes=True, restricted=True))
    assert says(said, "jobs of others", "nodes")
    ((_, said),) = job_words.hidden(admin_pb2.Privacy(jobs=True, restricted=True))
    assert "nodes" not in said
