"""What pages show can be typed: commands and options that exist, files that flexod takes, scripts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import command_help
import pytest
import yaml
from command_help import CommandHelp
from written_pages import ROOT, Code, pieces_of_code

from flexo.config import Settings, parse

CODE = tuple(pieces_of_code())
FLEXO = command_help.flexo()
FLEXOD = command_help.flexod()


def named(language: str) -> list[Code]:
    return [code for code in CODE if code.language == language]


def configurations() -> list[Code]:
    """TOML by its fence, or by a table of flexo.toml that it begins with."""
    begins = re.compile(rf"\[({'|'.join(Settings.model_fields)})\]\n")
    return [code for code in CODE if code.language == "toml" or begins.match(code.text)]


@pytest.mark.parametrize("code", configurations(), ids=str)
def test_flexod_takes_every_configuration_that_is_shown(code: Code) -> None:
    section = re.search(r"# in \[(\w+)\]$", code.text, re.MULTILINE)
    parse(f"[{section[1]}]\n{code.text}" if section else code.text, code.page)


@pytest.mark.processes
@pytest.mark.parametrize("code", named("bash"), ids=str)
def test_every_script_that_is_shown_is_one_for_bash(code: Code) -> None:
    done = subprocess.run(["bash", "-n"], input=code.text, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("code", named("yaml"), ids=str)
def test_every_piece_of_yaml_that_is_shown_is_yaml(code: Code) -> None:
    assert yaml.safe_load(code.text)


@pytest.mark.parametrize("code", named("json"), ids=str)
def test_every_piece_of_json_that_is_shown_is_json(code: Code) -> None:
    assert json.loads(code.text)


@pytest.mark.parametrize("code", named("python"), ids=str)
def test_every_piece_of_python_that_is_shown_is_python(code: Code) -> None:
    compile(code.text, code.page, "exec")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("lua5.1") is None, reason="lua5.1 is not installed")
@pytest.mark.parametrize("code", named("lua"), ids=str)
def test_every_piece_of_lua_that_is_shown_is_lua(code: Code) -> None:
    check = "assert(loadstring(io.read('*a')))"
    done = subprocess.run(["lua5.1", "-e", check], input=code.text, capture_output=True, text=True)
    assert done.stderr == ""


def calls(program: str) -> Iterator[tuple[Code, list[str]]]:
    """Command lines of `program` on all pages: where a line of code begins with it."""
    for code in CODE:
        if code.language in {"python", "lua", "toml"}:
            continue
        for line in code.text.replace("\\\n", " ").splitlines():
            called = re.match(rf"\s*{program}(?= |$)([^|<>;&#]*)", line)
            if called:
                yield code, shlex.split(called[1])


def command_of(words: list[str]) -> CommandHelp | None:
    """The command that `words` name; None for a placeholder such as COMMAND."""
    command = FLEXO
    for word in words:
        if not command.commands or word.startswith("-"):
            break
        if word.isupper() or word == "...":
            return None
        found = [each for each in command.commands if each.word == word]
        assert found, f"there is no flexo {word}"
        command = found[0]
    return command


def options_in(command: CommandHelp) -> set[str]:
    text = f"{command.verbatim} {' '.join(option.name for option in command.options)} --help"
    return set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", text))


def shown_options(command: CommandHelp, words: list[str]) -> set[str]:
    """Those of the command itself: what `flexo run` starts and `lab shell --` runs has its own."""
    own = words[: words.index("--")] if "--" in words else words
    if command.verbatim:
        own = (
            [word for word in own[1:] if word.startswith("-")] if own[1:2] and own[1].startswith("-") else []
        )
    return {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}


def test_every_flexo_command_that_is_shown_exists_with_its_options() -> None:
    seen = 0
    for code, words in calls("flexo"):
        command = command_of(words)
        if command is not None:
            seen += 1
            assert shown_options(command, words) <= options_in(command), code
    assert seen > 100


def test_every_flexod_option_that_is_shown_exists() -> None:
    for code, words in calls("flexod"):
        assert shown_options(FLEXOD, words) <= options_in(FLEXOD), code


def test_every_target_of_make_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= set(re.findall(r"^([a-z-]+):", (ROOT / "slurm_plugin/Makefile").read_text(), re.MULTILINE))
    for code, words in calls("make"):
        shown = {word for word in words if re.fullmatch(r"[a-z-]+[a-z]", word)}
        assert {word for word in shown if not word.startswith("-")} - {"slurm_plugin"} <= targets, code
