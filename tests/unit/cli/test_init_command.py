"""`flexo init`: the job script that it writes, and what it never overwrites."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import Run
from says import says

DDP = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
model = DistributedDataParallel(None)
for batch in DataLoader([]):
    model(batch).backward()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(DDP)
    return tmp_path


def sbatch_options(text: str) -> dict[str, str]:
    """Option by option, as sbatch reads the script."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, re.MULTILINE))


def test_the_script_asks_for_the_minimum_and_runs_the_training(folder: Path, flexo_run: Run) -> None:
    code, out, err = flexo_run("init", "train.py", "--elastic", "2-8", "--epochs", "3", "--out", "a b")
    assert (code, err) == (0, "")
    assert says(out, "train.sbatch", "sbatch train.sbatch")
    text = (folder / "train.sbatch").read_text()
    assert text.startswith("#!/bin/bash\n")
    assert sbatch_options(text) == {
        "job-name": "train", "ntasks": "2", "gpus-per-task": "1", "elastic": "2-8",
    }  # fmt: skip
    assert text.splitlines()[-1] == "flexo run python train.py --epochs 3 --out 'a b'"


def test_a_script_that_would_keep_its_size_is_written_with_a_hint(folder: Path, flexo_run: Run) -> None:
    (folder / "train.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    _, out, err = flexo_run("init", "train.py", "--to", "-")
    assert out.splitlines()[-1] == "flexo run python train.py"
    assert "flexo check train.py" in err
    assert not (folder / "train.sbatch").exists()


def test_what_the_site_wants_is_said_by_options(folder: Path, flexo_run: Run) -> None:
    line = ["--time=2-00:00:00", "--partition", "train", "--account", "vision", "--cpus-per-task", "4"]
    text = json.loads(flexo_run("init", "train.py", *line, "--gpus-per-task", "2", "--json")[1])["script"]
    assert text == (folder / "train.sbatch").read_text()
    found = sbatch_options(text)
    assert (found["time"], found["partition"], found["account"]) == ("2-00:00:00", "train", "vision")
    assert (found["cpus-per-task"], found["gpus-per-task"]) == ("4", "2")


def test_a_file_that_is_there_is_replaced_by_force_only(folder: Path, flexo_run: Run) -> None:
    (folder / "train.sbatch").write_text("mine")
    code, out, err = flexo_run("init", "train.py")
    assert (code, out) == (1, "")
    assert says(err, "train.sbatch", "--force", "--to")
    assert (folder / "train.sbatch").read_text() == "mine"
    assert flexo_run("init", "train.py", "--force")[0] == 0
    assert (folder / "train.sbatch").read_text() != "mine"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["--elastic", "8-2"], "8-2"),
        (["--account", "a\n#SBATCH --uid=0"], "allowed"),
        (["--time", "1 h"], "1 h"),
    ],
)
def test_values_that_sbatch_would_misread_are_usage_errors(
    folder: Path, flexo_run: Run, line: list[str], named: str
) -> None:
    code, _, err = flexo_run("init", "train.py", *line)
    assert code == 2
    assert named in err
    assert not (folder / "train.sbatch").exists()


def test_a_script_that_is_not_there_is_refused(folder: Path, flexo_run: Run) -> None:
    code, _, err = flexo_run("init", "nothing.py")
    assert code == 1
    assert "nothing.py" in err
