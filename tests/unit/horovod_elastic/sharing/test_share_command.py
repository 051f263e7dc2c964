"""`flexo share` says what is wrong and what is allowed, and its supervisor sees who works at a closed
gate.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from sharing_world import SHARE

from horovod_elastic.sharing import command, devices, environment, status, supervisor
from horovod_elastic.sharing.environment import Role, WrongVariable
from horovod_elastic.sharing.pages import GatePage, GateState, GuaranteePage, OpportunisticPage, Page
from horovod_elastic.sharing.status import Gpu, Member, NodeStatus


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["king"], "king"),
        (["guarantee", "--", "python"], "--gpu"),
        (["guarantee", "--gpu", "g0"], "command"),
        (["guarantee", "--gpu", "g 0", "--", "true"], "g 0"),
        (["guarantee", "--gpu", "g0", "--wat", "--", "true"], "--wat"),
        (["guarantee", "--gpu", "g0", "--with", "no-such-user", "--", "true"], "no-such-user"),
        (["coordinator", "--pretend", "g0"], "NAME:GIB"),
        (["coordinator", "--pretend", "g0:1", "--pretend", "g0:2"], "two devices"),
        (["coordinator", "python"], "python"),
    ],
)
def test_a_wrong_command_line_is_named(
    line: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = command.main(line)
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 2
    assert named in capsys.readouterr().err


def test_help_is_there_and_no_arguments_are_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("coordinator", "guarantee", "opportunistic", "status"))
    assert command.main([]) == 2


def test_options_of_the_script_are_the_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run: list[object] = []
    line = [
        "guarantee",
        "--gpu",
        "g0",
        "--folder",
        str(tmp_path),
        "python",
        "train.py",
        "--gpu",
        "9",
        "--help",
    ]

    def execute(*arguments: object) -> None:
        run.extend(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(command.os, "execvpe", execute)
    with pytest.raises(SystemExit):
        command.main(line)
    assert run[:2] == ["python", ["python", "train.py", "--gpu", "9", "--help"]]
    shared = environment.read(run[2])  # type: ignore[arg-type]
    assert shared is not None
    assert (shared.role, shared.gpu, shared.folder) == (Role.GUARANTEE, "g0", tmp_path)


def node() -> NodeStatus:
    guarantee = Member(Role.GUARANTEE, "bert", 10, 1000, 99, 3 << 30)
    other = Member(Role.OPPORTUNISTIC, "gan", 11, 1000, 7, 1 << 30, 2 << 30)
    gpu = Gpu(
        *(
            "g0",
            "pretended",
            True,
            8 << 30,
            4 << 30,
            0.5,
            "gaps",
            "the opportunistic job fills gaps",
            2 << 30,
        ),
        *(guarantee, other, (other,), 0.004, 0.4),
    )
    return NodeStatus("n1", 5, time.time(), (gpu,))


def test_the_status_is_printed_for_people_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status.write(node(), tmp_path)
    assert command.main(["status", "--folder", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("g0", "bert", "gan", "+0.4%", "40%", "waits", "2.0 GiB moved"))
    assert command.main(["status", "--folder", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"][0]["guarantee"]["job"] == "bert"


def test_without_a_coordinator_there_is_no_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["status", "--folder", str(tmp_path)]) == 3
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "g0", ":3", "g0:", "g0:x", "g0:0", "g0:99999", "a b:3"])
def test_what_declares_no_device_is_refused(text: str) -> None:
    with pytest.raises(WrongVariable):
        devices.pretended(text)


def test_a_pretended_device_has_its_name_and_size() -> None:
    made = devices.pretended("h100:0:2.5")
    assert (made.name, made.memory_total, made.pretended) == ("h100:0", int(2.5 * devices.GIB), True)


def test_a_pretended_device_is_busy_with_its_jobs_cpu_time() -> None:
    made = devices.pretended("g0:1")
    made.read([os.getpid()], 0)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    reading = made.read([os.getpid(), 2**22 + 1], 77)
    assert 0.0 < reading.utilization <= 1.0
    assert reading.memory_used == 77


@pytest.mark.processes
@pytest.mark.parametrize(("own", "code"), [(7, 7), (supervisor.ENDED, supervisor.FAILED)])
def test_a_command_cannot_claim_that_its_gpu_was_taken(own: int, code: int) -> None:
    command = [*SHARE, "opportunistic", "--gpu", "g0", "--", "sh", "-c", f"exit {own}"]
    assert subprocess.run(command, check=False).returncode == code


# --- the supervisor's judgement
# -----------------------------------------------------------------------------


@pytest.fixture
def watched() -> supervisor.Watched:
    page = Page.make("opportunistic")
    page.words[OpportunisticPage.STARTED] = 1
    made = supervisor.Watched(OpportunisticPage(page), os.getpid(), GatePage(Page.make("gate")))
    made.guarantee = GuaranteePage(Page.make("guarantee"))
    made.look(0.1, stopped=False)
    return made


def test_a_process_that_works_at_a_closed_gate_is_counted(watched: supervisor.Watched) -> None:
    before = time.process_time()
    while time.process_time() < before + 0.2:
        pass
    watched.look(1.0, stopped=False)
    assert 0.15 < watched.closed_s < 0.5


def test_one_that_was_stopped_is_counted_too(watched: supervisor.Watched) -> None:
    for _ in range(5):
        watched.look(0.1, stopped=True)
    assert watched.closed_s == pytest.approx(0.5)


def test_one_that_waits_for_others_away_from_its_gate_is_not(watched: supervisor.Watched) -> None:
    time.sleep(0.2)
    watched.look(0.2, stopped=False)
    assert watched.closed_s < 0.1


@pytest.mark.parametrize("what", ["passes", "waits", "has not started"])
def test_one_that_passes_waits_or_uses_no_gpu_yet_is_not(watched: supervisor.Watched, what: str) -> None:
    page = watched.page.page
    for count in range(5):
        page.words[OpportunisticPage.PASSES] = count + 1 if what == "passes" else 0
        page.halves[OpportunisticPage.WAITING] = what == "waits"
        page.words[OpportunisticPage.STARTED] = what != "has not started"
        watched.look(0.1, stopped=False)
    assert watched.closed_s == 0.0


def test_a_gate_is_closed_by_its_state_by_a_flight_and_by_age(watched: supervisor.Watched) -> None:
    order, guarantee = watched.order, watched.guarantee
    assert order is not None
    assert guarantee is not None
    assert watched.is_closed()
    order.page.halves[GatePage.STATE] = GateState.GAPS
    assert not watched.is_closed()
    guarantee.page.halves[GuaranteePage.IN_FLIGHT] = 1
    assert watched.is_closed()
    order.page.halves[GatePage.STATE] = GateState.OPEN
    assert not watched.is_closed()
    order.page.words[1] = 0
    assert watched.is_closed()
    watched.order = None
    assert watched.is_closed()
