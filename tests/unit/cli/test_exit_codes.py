"""Exit codes and JSON, over all commands: scripts rely on both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import flexo
from flexo_cli import app, status
from flexo_cli.exit_codes import ExitCode

WITHOUT_JSON = {
    "completion": "prints a script",
    "run": "its output is the training's",
    "hosts": "its output is horovodrun's protocol",
    "aggregator": "it serves until it is told to end, and prints nothing",
    "share": "its output is the training's; `flexo share status` has --json",
    "lab shell": "its output is the command's",
    "yarn history": "its output is JSON without an option",
}


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command with its words: `lab up`."""
    group = typer.main.get_command(app.application())
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from ((f"{name} {sub}", each) for sub, each in command.commands.items())
        else:
            yield name, command


ALL = dict(commands())


def options_of(name: str) -> list[str]:
    return [option for parameter in ALL[name].params for option in parameter.opts]


@pytest.mark.parametrize("name", sorted(ALL.keys() - WITHOUT_JSON.keys()))
def test_every_command_whose_output_is_its_own_has_json(name: str) -> None:
    assert "--json" in options_of(name)


@pytest.mark.parametrize("name", sorted(WITHOUT_JSON))
def test_a_command_that_is_an_exception_exists_and_has_no_json(name: str) -> None:
    assert WITHOUT_JSON[name]
    assert "--json" not in options_of(name)


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"run", "hosts", "share", "aggregator"}))
def test_an_option_that_no_command_has_is_a_usage_error_everywhere(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*name.split(), "--no-such-option"]) == ExitCode.USAGE
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["status"],
        ["jobs"],
        ["why", "7"],
        ["events", "7"],
        ["events", "--follow"],
        ["top"],
        ["scale", "7", "2"],
        ["scale-out", "7", "2"],
        ["scale-in", "7", "2"],
        ["profile", "7", "--min", "1", "--max", "2"],
        ["checkpoint", "7", "x"],
        ["wait", "7"],
        ["cost", "7"],
        ["loans"],
        ["forecast"],
    ],
)
def test_every_command_that_needs_flexod_says_the_same_where_there_is_none(
    line: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text("not TOML")
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    assert app.run(line) == ExitCode.UNREACHABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(file) in captured.err


def test_ctrl_c_ends_a_command_as_a_shell_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(option: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "find_address", interrupt)
    assert app.run(["status"]) == ExitCode.INTERRUPTED


def test_the_version_as_json_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": flexo.__version__}
