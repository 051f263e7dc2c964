"""The pages that researchers read first: outputs are those of the commands, and recipes say who ran them."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from pathlib import Path

import decision_picture
import pytest
import quickstart_recording
from written_pages import PAGES, ROOT, text_of

from flexo_cli import app

RESEARCHER, QUICKSTART = "docs/tutorial/researcher.md", "docs/tutorial/quickstart.md"
RECIPES = [page for page in PAGES if page.startswith("docs/howto/recipes/")]
SCRIPTS = ("examples/digits/train_ddp.py", "tests/training/scripts/keeps_its_size.py")


def shown(page: str) -> list[str]:
    """The outputs on a page, without the margin of a list's item."""
    found = re.findall(r"^( *)```text\n(.*?)^ *```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{margin}", "", text, flags=re.MULTILINE) for margin, text in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scripts of the pages."""
    for script in SCRIPTS:
        shutil.copy(ROOT / script, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (QUICKSTART, "check train_ddp.py"),
        (RESEARCHER, "check train_ddp.py"),
        (RESEARCHER, "check keeps_its_size.py"),
        (RESEARCHER, "init train_ddp.py --elastic 1-4 -- --epochs 100 --pause 0.2"),
    ],
)
def test_what_a_page_shows_is_what_the_command_prints(
    folder: Path, page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app.run(shlex.split(command))
    assert capsys.readouterr().out in shown(page)


def test_the_job_script_that_is_shown_is_the_one_that_is_written(folder: Path) -> None:
    app.run(shlex.split("init train_ddp.py --elastic 1-4 -- --epochs 100 --pause 0.2"))
    assert (folder / "train_ddp.sbatch").read_text() in shown(RESEARCHER)


def test_the_decision_tree_is_the_one_that_its_program_draws() -> None:
    assert decision_picture.FILE.read_text() == decision_picture.picture()


def test_the_recording_shows_the_commands_of_its_program() -> None:
    shown_commands = re.findall(r'class="c"[^>]*>\$ (.*)</text>', quickstart_recording.FILE.read_text())
    assert tuple(map(html.unescape, shown_commands)) == quickstart_recording.COMMANDS


def test_the_decision_tree_and_the_list_below_it_have_as_many_questions() -> None:
    below = text_of(RESEARCHER).split("can-my-script.svg")[1].split("\n##")[0]
    assert len(re.findall(r"^\d\. ", below, re.MULTILINE)) == len(decision_picture.QUESTIONS)


@pytest.mark.parametrize("page", RECIPES)
def test_each_recipe_says_which_test_ran_it_or_that_none_did(page: str) -> None:
    text = text_of(page)
    tests = re.findall(r"`(tests/\S+\.py)`", text)
    assert tests or "not run here" in text.lower()
    assert [test for test in tests if not (ROOT / test).is_file()] == []


def test_there_is_a_recipe_for_all_that_researchers_ask_for() -> None:
    asked = {"apptainer", "pyxis", "conda", "modules", "network", "wandb", "submitit", "hydra", "jupyter"}
    assert {Path(page).stem for page in RECIPES} == {*asked, "node-local-data"}
