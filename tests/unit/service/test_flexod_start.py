"""flexod before it serves: its options, its configuration, its lock and its address."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from service_doubles import Observed, PlainAuthenticator

from flexo.availability.leadership_guard import ALONE
from flexo.service import active, flexod
from flexo.service.admin_service import AdminService
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.process import CannotServe
from flexo.service.server import AddressUnusable, ServiceRouter, all_services, check_address, listen

HOLD_LOCK = """
import sys
import threading
from pathlib import Path
from flexo.service import flexod
with flexod._only_flexod_of(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def flexod_ends(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["flexod", *arguments])
    with pytest.raises(SystemExit) as end:
        flexod.main()
    return end.value.code


def test_check_config_says_that_a_good_file_is_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text('[service]\naddress = "127.0.0.1:7000"\n')
    monkeypatch.setattr(sys, "argv", ["flexod", "--config", str(file), "--check-config"])
    flexod.main()
    assert capsys.readouterr().out == f"{file}: in order\n"


def test_a_wrong_configuration_is_exit_2_with_every_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text('[service]\nadress = "a:1"\n[controller]\npolicy = 3\n')
    assert flexod_ends(monkeypatch, "--config", str(file)) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "adress" in first
    assert "policy" in second


def test_a_missing_configuration_is_exit_2_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flexod_ends(monkeypatch, "--config", str(tmp_path / "none.toml")) == 2
    assert "none.toml" in capsys.readouterr().err


def test_without_munge_flexod_does_not_start_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text(f'[service]\nmunge_socket = "{tmp_path}/none"\n[event_store]\npath = "{tmp_path}/j"\n')
    assert flexod_ends(monkeypatch, "--config", str(file)) == 1
    said = capsys.readouterr().err
    assert "MUNGE" in said
    assert said.count("\n") == 1


def test_an_unknown_option_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flexod_ends(monkeypatch, "--fast") == 2


@pytest.mark.processes
def test_a_second_flexod_on_one_event_store_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    event_store = tmp_path / "journal.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(event_store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(CannotServe, match=rf"another flexod \(pid {first.pid}\).*{event_store}"):  # noqa: SIM117
            with flexod._only_flexod_of(event_store):
                pass
        first.communicate()
    with flexod._only_flexod_of(event_store):
        assert event_store.with_name("journal.sqlite.lock").read_text() == f"{os.getpid()}\n"


def test_a_event_store_in_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match="nowhere"):  # noqa: SIM117
        with flexod._only_flexod_of(tmp_path / "nowhere" / "journal.sqlite"):
            pass


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "[::]:7000", "0:7000"])
def test_all_interfaces_are_refused_unless_asked_for(address: str) -> None:
    with pytest.raises(AddressUnusable, match="--every-interface"):
        check_address(address, everywhere=False)
    check_address(address, everywhere=True)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(AddressUnusable, match=r"nobody\.invalid:7000"):
        check_address("nobody.invalid:7000", everywhere=False)


def test_a_port_in_use_is_refused_and_named() -> None:
    async def start(port: int) -> None:
        service = JobService(LeaderRegistry(), Observed(), ServiceTimeouts())
        admin = AdminService(None, None, LeaderRegistry(), ())  # type: ignore[arg-type]
        inference = InferenceService(None, frozenset(), lambda: None)
        router = ServiceRouter()
        router.activate(all_services(service, admin, inference), ALONE)
        await listen(f"127.0.0.1:{port}", PlainAuthenticator(), router)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnusable, match=f"127.0.0.1:{port}: Address already in use"):
            asyncio.run(start(port))


def test_a_controller_that_falls_over_ends_flexod_and_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def run(self, stop: threading.Event) -> None:
            raise ZeroDivisionError("a mistake")

    async def story() -> bool:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with active.controller_thread(Broken(), LeaderRegistry(), loop, ended) as failed:  # type: ignore[arg-type]
            await asyncio.wait_for(ended.wait(), 60)
        return failed.is_set()

    assert asyncio.run(story())
    assert "a mistake" in capsys.readouterr().out


def test_the_controller_is_told_to_stop_and_waited_for() -> None:
    class Working:
        stopped = False

        def run(self, stop: threading.Event) -> None:
            stop.wait(60)
            self.stopped = stop.is_set()

    async def story(controller: Working) -> bool:
        loop = asyncio.get_running_loop()
        async with active.controller_thread(controller, LeaderRegistry(), loop, asyncio.Event()) as failed:  # type: ignore[arg-type]
            pass
        return failed.is_set()

    working = Working()
    assert not asyncio.run(story(working))
    assert working.stopped


def test_the_event_loop_goes_on_while_the_controller_still_waits_for_slurm() -> None:
    """Leaders are told in the event loop that flexod has lost its lease."""

    class WaitsForSlurm:
        leaders_were_told = threading.Event()
        in_time = False

        def run(self, stop: threading.Event) -> None:
            stop.wait(60)
            self.in_time = self.leaders_were_told.wait(20)

    async def story(controller: WaitsForSlurm) -> None:
        loop = asyncio.get_running_loop()

        async def tell() -> None:
            while not leaving:
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            controller.leaders_were_told.set()

        leaving: list[bool] = []
        telling = asyncio.create_task(tell())
        thread = active.controller_thread(controller, LeaderRegistry(), loop, asyncio.Event())  # type: ignore[arg-type]
        async with thread:
            leaving.append(True)
        await telling

    controller = WaitsForSlurm()
    asyncio.run(story(controller))
    assert controller.in_time


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_a_controller_that_is_ended_in_any_other_way_ends_flexod_too(error: BaseException) -> None:
    class Broken:
        def run(self, stop: threading.Event) -> None:
            raise error

    async def story() -> bool:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        thread = active.controller_thread(Broken(), LeaderRegistry(), loop, ended)  # type: ignore[arg-type]
        async with thread as failed:
            await asyncio.wait_for(ended.wait(), 60)
        return failed.is_set()

    assert asyncio.run(story())


def test_one_of_several_that_cannot_tell_which_it_is_says_how_to_name_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flexo.toml"
    hosts = 'hosts = ["127.0.0.1:7000", "127.0.0.1:7001"]'
    file.write_text(f'[high_availability]\n{hosts}\nlease = "file://{tmp_path}"\n')
    assert flexod_ends(monkeypatch, "--config", str(file)) == 2
    assert "--address HOST:PORT says which one" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["flexod", "--config", str(file), "--check-config"])
    flexod.main()  # wherever that is asked
    assert capsys.readouterr().out == f"{file}: in order\n"
