"""What the site generates: all keys, commands, options and rpcs, each with a word on it, and on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_help
import parts
import pytest
import reference_protos
import reference_rooms
import reference_states
import settings_help
import yaml
from command_help import CommandHelp
from markdown_text import cell
from written_pages import PAGES, ROOT, text_of

from flexo.config import Settings
from flexo_cli.exit_codes import ExitCode
from horovod_elastic.leader.membership.states import TABLES, Table

SITE = ROOT / "docs" / "site" / "mkdocs.yml"


def commands(command: CommandHelp) -> list[CommandHelp]:
    below = [each for sub in command.commands for each in commands(sub)]
    return [command, *below]


def test_every_key_is_in_the_table_of_its_section_with_default_limits_and_meaning() -> None:
    for section in settings_help.sections():
        table = parts.all_parts()[f"keys of [{section.name}]"]
        assert [key.name for key in section.keys] == list(
            Settings.model_fields[section.name].annotation.model_fields
        )
        for key in section.keys:
            assert key.text, f"[{section.name}] {key.name} has no docstring in config.py"
            row = next(line for line in table.splitlines() if line.startswith(f"| `{key.name}` |"))
            assert f"| `{key.default}` |" in row


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "unset"),
        (False, "false"),
        ((), "[]"),
        (("sudo", "-n"), '["sudo", "-n"]'),
        ({}, "{}"),
        ({"research": 64}, "{ research = 64 }"),
        (2.0, "2"),
        (0.02, "0.02"),
        ("flex", '"flex"'),
    ],
)
def test_a_default_is_written_as_the_file_would_have_it(value: object, written: str) -> None:
    assert settings_help.toml(value) == written


def test_every_command_has_a_section_with_all_of_its_options() -> None:
    text = parts.all_parts()["help of flexo"]
    leaves = [each for each in commands(command_help.flexo()) if not each.commands]
    assert len(leaves) > 20
    for each in leaves:
        section = text.split(f"### {each.name} {{#")[1].split("\n### ")[0]
        assert each.verbatim in section
        for option in each.options:
            assert f"| `{option.name}` |" in section


def test_every_exit_code_is_in_the_table() -> None:
    table = parts.all_parts()["exit codes of flexo"]
    assert all(f"| `{code.value}` | {code.meaning} |" in table for code in ExitCode)


def test_every_rpc_message_field_and_enum_is_on_the_page_of_protocols() -> None:
    text = parts.all_parts()["protos"]
    for file in reference_protos.files():
        names = [message.name for message in file.message_type]
        names += [enum.name for enum in file.enum_type] + [service.name for service in file.service]
        assert all(f"### {name} {{#{name.lower()}}}" in text for name in names)
        for service in file.service:
            section = text.split(f"### {service.name} ")[1].split("\n### ")[0]
            assert all(f"| `{method.name}` |" in section for method in service.method)
        for message in file.message_type:
            section = text.split(f"### {message.name} ")[1].split("\n### ")[0]
            assert all(f"| `{field.name}` |" in section for field in message.field)


def test_comments_of_the_sources_are_on_the_page_of_protocols() -> None:
    text = parts.all_parts()["protos"]
    assert "The leader dials" in text  # of a file
    assert "Train with each size" in text  # above an rpc
    assert re.search(r"\| `restart_count` \| uint32 \| 2 \| .*\brequeued\b", text)  # beside a field


def test_every_file_of_a_room_is_on_the_page_of_rooms_with_what_it_says_of_itself() -> None:
    for package in reference_rooms.PACKAGES:
        text = parts.all_parts()[f"rooms of {package}"]
        for path in (ROOT / package).rglob("*.py"):
            if path.stat().st_size and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                folder = path.parent.relative_to(ROOT).as_posix()
                section = text.split(f"### {folder}\n")[1].split("\n### ")[0]
                assert f"| `{path.name}` | {cell(reference_rooms.first_sentence(path))} |" in section


def test_a_file_that_says_nothing_of_itself_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_rooms, "ROOT", tmp_path)
    (tmp_path / "mute.py").write_text("x = 1\n")
    with pytest.raises(reference_rooms.SaysNothing, match=r"mute\.py has no docstring"):
        reference_rooms.first_sentence(tmp_path / "mute.py")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.of)
def test_every_state_and_transition_of_a_job_is_on_the_page_of_states(
    table: Table[Any, Any],
) -> None:
    name = f"states of {table.of}"
    assert f"<!-- generated: {name} -->" in text_of("docs/reference/job-states.md")
    text = parts.all_parts()[name]
    transitions = list(table.transitions())
    for state, event, then in transitions:
        assert f"| {state.value} | {event.value} | {then.value} |" in text
    assert sum(line.startswith("| ") for line in text.splitlines()) == len(transitions) + 2
    picture = reference_states.picture(table)
    assert all(f">{state.value}</text>" in picture for state in table.rows)
    assert picture.count("marker-end=") == len({(state, then) for state, _, then in transitions})


def test_every_part_is_asked_for_by_one_page_and_no_page_asks_for_more() -> None:
    asked = [name for page in PAGES for name in parts.MARK.findall(text_of(page))]
    assert sorted(asked) == sorted(parts.all_parts())


def test_a_page_that_asks_for_what_nobody_generates_is_told_what_there_is() -> None:
    with pytest.raises(parts.UnknownPart, match=r"'keys of \[servis\]'.*keys of \[service\]"):
        parts.filled("<!-- generated: keys of [servis] -->")


def pages_in(navigation: str | list[dict[str, Any]]) -> Iterator[str]:
    """Pages of a part of the navigation: one page, or parts with their titles."""
    if isinstance(navigation, str):
        yield navigation
    else:
        yield from (page for part in navigation for each in part.values() for page in pages_in(each))


def test_every_page_is_in_the_site_s_navigation() -> None:
    found = set(pages_in(yaml.safe_load(SITE.read_text())["nav"]))
    assert found == {"index.md", *(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))}
