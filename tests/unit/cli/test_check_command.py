"""`flexo check`: exit codes, sentences and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from says import says

from flexo_cli import app
from flexo_cli.exit_codes import ExitCode

ELASTIC = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
model = DistributedDataParallel(None)
for batch in DataLoader([]):
    model(batch).backward()
"""
GROUPS = "import torch.distributed as dist\ngroup = dist.new_group([0])\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(ELASTIC)
    return path


def test_an_elastic_script_ends_with_0(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["check", str(script), "--epochs", "3", "-x"]) == ExitCode.DONE
    assert says(capsys.readouterr().out, "plain DDP", "1 file", "nothing found")


def test_a_script_of_fixed_size_ends_with_its_own_code(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(GROUPS + ELASTIC)
    assert app.run(["check", str(script)]) == ExitCode.FIXED_SIZE
    assert says(capsys.readouterr().out, f"{script}:2", "keeps its size", "dist.new_group()", "1 reason")


@pytest.mark.parametrize("before", [True, False])
def test_json_has_each_finding(script: Path, before: bool, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(GROUPS + ELASTIC)
    words = ["--json", str(script)] if before else [str(script), "--json"]
    assert app.run(["check", *words]) == ExitCode.FIXED_SIZE
    found = json.loads(capsys.readouterr().out)
    what = found["findings"][0].pop("what")
    assert found == {
        "script": str(script),
        "tier": "plain DDP",
        "elastic": False,
        "files": [str(script)],
        "findings": [{"rule": "new-group", "level": "keeps its size", "file": str(script), "line": 2}],
    }
    assert "dist.new_group()" in what


def test_the_scripts_arguments_are_checked(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["check", str(script), "--deepspeed", "ds.json"]) == ExitCode.FIXED_SIZE
    assert says(capsys.readouterr().out, "the arguments", "--deepspeed")


@pytest.mark.parametrize("content", [None, "what now"])
def test_what_cannot_be_read_is_refused(
    script: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    script.unlink()
    if content is not None:
        script.write_text(content)
    assert app.run(["check", str(script)]) == ExitCode.REFUSED
    assert str(script) in capsys.readouterr().err
