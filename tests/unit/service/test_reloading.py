"""SIGHUP: a good change of the configuration is taken over, a wrong one is told and changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from flexo.config import ConfigError, Settings, load
from flexo.control.views import Unheeded
from flexo.service.active import Active
from flexo.service.process import Process
from flexo.service.reloading import AT_ONCE, Configuration, Reloading, compare

GOOD = '[service]\naddress = "127.0.0.1:7000"\n[controller]\ntime_limit_s = 120\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "flexo.toml"
    path.write_text(GOOD)
    return path


class Taken:
    """What flexod was told to go by."""

    def __init__(self, configuration: Configuration) -> None:
        self.settings = configuration.read()
        self.news: list[str] = []
        self.unheeded = ""
        self._reloading = Reloading(configuration, self.settings, self._take)

    def _take(self, settings: Settings, news: str, unheeded: Unheeded) -> None:
        self.settings, self.unheeded = settings, str(unheeded)
        self.news.append(news)

    async def hup(self) -> None:
        told = len(self.news)
        self._reloading.begin()
        async with asyncio.timeout(60):
            while len(self.news) == told:
                await asyncio.sleep(0.01)


def test_an_error_that_nobody_expected_is_told_as_a_wrong_file_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        taken = Taken(Configuration(file))
        before = taken.settings

        def fail(configuration: Configuration) -> Settings:
            raise ZeroDivisionError("as the test says")

        with monkeypatch.context() as patched:
            patched.setattr(Configuration, "read", fail)
            await taken.hup()
        assert "ZeroDivisionError: as the test says" in taken.unheeded
        assert taken.settings == before
        await taken.hup()
        assert taken.unheeded == "", "the next reload is heeded"

    asyncio.run(story())


def test_a_good_change_is_taken_over_and_the_rest_waits_for_a_restart(file: Path) -> None:
    async def story() -> None:
        taken = Taken(Configuration(file))
        file.write_text(
            '[service]\naddress = "127.0.0.1:7001"\nadministrators = ["ada"]\n'
            "[controller]\ntime_limit_s = 240\ndry_run = true\n[event_store]\nkeep_days = 3\n"
        )
        await taken.hup()
        assert taken.settings.controller.time_limit_s == 240
        assert taken.settings.service.administrators == ("ada",)
        assert taken.settings.service.address == "127.0.0.1:7000"
        assert not taken.settings.controller.dry_run
        waits = "needs a restart of flexod: [service] address, [controller] dry_run, [event_store] keep_days"
        assert taken.unheeded == waits
        over = "taken over: [service] administrators, [controller] time_limit_s"
        assert taken.news == [f"configuration read again: {over}; {waits}"]
        file.write_text(GOOD)
        await taken.hup()
        assert (taken.settings, taken.unheeded) == (load(file), "")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[controller]\ntime_limit_s = 7\nslow_gpu_s = 60\n",
            "flexo.toml:2: [controller] time_limit_s = 7 is not",
        ),
        ("[controler]\n", "[controler] is not a section; did you mean controller?"),
        ("[controller\n", "flexo.toml:1: not TOML"),
        (None, "cannot be read: [Errno 2] No such file"),
    ],
)
def test_of_a_wrong_file_nothing_is_taken_and_what_is_wrong_is_told(
    file: Path, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        taken = Taken(Configuration(file))
        before = taken.settings
        file.unlink() if text is None else file.write_text(text)
        await taken.hup()
        assert taken.settings is before
        assert said in taken.unheeded
        assert taken.news == [taken.unheeded]
        assert said in capsys.readouterr().out
        file.write_text(GOOD)
        await taken.hup()
        assert (taken.unheeded, taken.news[-1]) == ("", "configuration read again: nothing has changed")

    asyncio.run(story())


def test_a_dry_run_of_the_command_line_stays_one_whatever_the_file_says(file: Path) -> None:
    async def story() -> None:
        taken = Taken(Configuration(file, dry_run=True))
        file.write_text(
            "[controller]\ndry_run = false\ntime_limit_s = 240\n[service]\naddress = '127.0.0.1:7000'\n"
        )
        await taken.hup()
        assert taken.settings.controller.dry_run
        assert taken.settings.controller.time_limit_s == 240
        assert taken.unheeded == ""

    asyncio.run(story())


def test_each_key_is_either_taken_over_or_said_to_wait(file: Path) -> None:
    known = {
        (section, key)
        for section in Settings.model_fields
        for key in type(getattr(Settings(), section)).model_fields
    }
    assert known >= AT_ONCE
    for section, key in sorted(known):
        part = getattr(Settings(), section).model_copy(update={key: "something else"})
        change = compare(Settings(), Settings().model_copy(update={section: part}))
        name = f"[{section}] {key}"
        assert (change.taken, change.waiting) in (((name,), ()), ((), (name,)))
        assert (change.settings == Settings()) == (name in change.waiting)


def test_the_reference_lists_the_keys_that_count_without_a_restart() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    _, _, told = text.partition("## Changing it while flexod runs")
    told = told.partition("\n## ")[0]
    assert "all of `[controller]` but `dry_run`" in told
    assert all(f"`{key}`" in told for section, key in AT_ONCE if section != "controller")


def test_signals_have_it_read_again_and_do_not_end_flexod(file: Path) -> None:
    async def story() -> None:
        configuration = Configuration(file)
        process = Process(configuration, configuration.read())
        file.write_text("[controller]\ntime_limit_s = 61\n")
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while process.settings.controller.time_limit_s != 61:
                await asyncio.sleep(0.01)
        assert not process.ended.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.ended.wait()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("more", "news"),
    [
        ("time_limit_s = 61\n", "configuration read again: taken over: [controller] time_limit_s"),
        ("time_limit_s = 120\ndry_run = true\n", "configuration read again: needs a restart of flexod: "),
        ("time_limit_s = 7\n", "the configuration is not taken over, nothing of it: "),
    ],
)
def test_what_is_read_while_nobody_acts_is_told_to_the_one_who_acts_next(
    file: Path, more: str, news: str
) -> None:
    class Acts:
        def __init__(self) -> None:
            self.told: list[tuple[Settings, str, Unheeded]] = []

        def take(self, *told: Any) -> None:
            self.told.append(told)

    async def story() -> None:
        configuration = Configuration(file)
        process = Process(configuration, before := configuration.read())
        undisturbed = next_one = Acts()
        process.begin_to_act(cast(Active, undisturbed), before)
        assert undisturbed.told == []
        process.stand_by()
        file.write_text(GOOD.replace("time_limit_s = 120\n", more))
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while not next_one.told:
                await asyncio.sleep(0.01)
                process.begin_to_act(cast(Active, next_one := Acts()), before)
                process.stand_by()
        ((settings, said, unheeded),) = next_one.told
        assert said.startswith(news)
        assert settings.controller.time_limit_s == (61 if "61" in more else 120)
        assert bool(unheeded) == ("61" not in more)
        process.begin_to_act(cast(Active, last := Acts()), settings)
        assert last.told == ([(settings, f"as before: {unheeded}", unheeded)] if unheeded else [])

    asyncio.run(story())


@pytest.mark.processes
def test_a_signal_that_comes_while_flexod_begins_does_not_end_it(tmp_path: Path) -> None:
    slow = tmp_path / "flexo.toml"
    os.mkfifo(slow)  # flexod waits for it to be written
    command = [sys.executable, "-c", "from flexo.service.flexod import main; main()", "--config", str(slow)]
    with subprocess.Popen([*command, "--check-config"], stdout=subprocess.PIPE, text=True) as begun:
        with slow.open("w") as writer:  # opens when flexod reads
            begun.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            writer.write(GOOD)
        assert begun.communicate()[0] == f"{slow}: in order\n"
        assert begun.returncode == 0


@pytest.mark.parametrize(
    ("content", "named"), [(None, "cannot be read"), ("{", "not JSON"), ('{"format": "x"}', "all-reduce")]
)
def test_a_damaged_file_of_all_reduces_is_named_and_nothing_is_taken_over(
    file: Path, content: str | None, named: str
) -> None:
    table = file.with_name("all_reduce.json")
    if content is not None:
        table.write_text(content)
    file.write_text(f'{GOOD}all_reduce = "{table}"\n')
    with pytest.raises(ConfigError) as refused:
        Configuration(file).read()
    (problem,) = refused.value.problems
    assert str(table) in problem
    assert named in problem
