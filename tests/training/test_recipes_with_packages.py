"""The recipes for Hydra, environment modules, Jupyter and wandb: their own scripts and cells, on a lab.

`make test-all` installs what they need (setup.sh recipes). Where it is missing, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from elastic_jobs import SCRIPTS, Job
from test_recipes_on_slurm import TRAINING, epochs_of

from flexo_lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).resolve().parents[2]
BOUND_S: Final = 400.0
"""How long a job may take to grow."""
MODULES: Final = Path("/usr/share/modules/init/bash")
EPOCHS: Final = """
for epoch in range(epochs):
    train_one(epoch)
"""
LOGGED: Final = """
for epoch in range(epochs):
    train_one(epoch)
    log({"epoch": epoch}, epoch)
    if dist.get_rank() == 0:
        Path("rank0").write_text(str(os.getpid()))
"""
"""EPOCHS, each logged by the recipe's function."""
FACTS: Final = """
import json
import os
import shutil
import sys

FACTS = ("SLURM_JOB_ID", "LOADEDMODULES", "CUDA_HOME", "LD_LIBRARY_PATH")
with open("seen", "a") as file:
    facts = {name: os.environ.get(name) for name in FACTS}
    print(json.dumps({**facts, "prefix": sys.prefix, "nvcc": shutil.which("nvcc")}), file=file)
"""
"""What a worker has of modules and Python."""
EXECUTE: Final = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read("notebook.ipynb", as_version=4)
NotebookClient(notebook, timeout=300).execute()
nbformat.write(notebook, "executed.ipynb")
"""
"""Executes a notebook in the current folder."""


def blocks(recipe: str, language: str) -> list[str]:
    """The pieces of code in a language on a recipe's page, without the margin of a list's item."""
    page = (ROOT / "docs" / "howto" / "recipes" / f"{recipe}.md").read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{margin}", "", text, flags=re.MULTILINE) for margin, text in found]


def installed(*folders: str) -> dict[str, str]:
    """The variable by which Python finds packages that set-up puts beside the others."""
    paths = [Path(sys.prefix) / folder for folder in folders]
    for path in paths:
        if not path.is_dir():
            missing(str(path))
    return {"PYTHONPATH": ":".join(map(str, paths))}


def missing(what: str) -> None:
    """Skip the test; fail where all have to run."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
        f"{what}: not installed, ./setup.sh recipes does"
    )


@dataclass(frozen=True)
class PageJob(Job):
    """A job that was submitted as a page has it: sbatch names the file of its output."""

    def output(self) -> str:
        path = self.folder / f"slurm-{self.job_id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, workers: int) -> None:
        """Wait until it has trained an epoch with so many workers."""
        self.wait_until(f"{workers} workers", lambda: f"with {workers} workers" in self.output(), BOUND_S)


def with_fewer(script: str, most: int) -> str:
    """A page's job script for fewer workers: a small machine has no room for more."""
    assert "#SBATCH --elastic=2-8\n" in script
    return script.replace("#SBATCH --elastic=2-8\n", f"#SBATCH --elastic=2-{most}\n")


def type_in(lab: Lab, folder: Path, line: str, shell: Sequence[str] = ("bash", "-c"), **more: str) -> str:
    """What a line prints that somebody types into a shell in that folder."""
    variables = [f"{name}={value}" for name, value in more.items()]
    return lab.run(["env", *variables, *shell, line], cwd=folder, timeout=600).stdout


def submitted(lab: Lab, folder: Path, printed: str) -> list[PageJob]:
    """The jobs that sbatch says it has submitted."""
    return [PageJob(folder, lab, int(number)) for number in re.findall(r"Submitted batch job (\d+)", printed)]


def a_folder(lab: Lab, name: str) -> Path:
    folder = lab.scratch / name
    folder.mkdir()
    return folder


def test_hydra_makes_one_folder_and_one_log_for_each_job_of_a_sweep_whatever_its_size(alone: Lab) -> None:
    packages = installed("recipes")
    folder = a_folder(alone, "hydra")
    script, sweep = blocks("hydra", "bash")
    shutil.copy(SCRIPTS / "with_hydra.py", folder / "train.py")
    (folder / "train.sbatch").write_text(with_fewer(script, 3))
    jobs = submitted(alone, folder, type_in(alone, folder, sweep, **packages))
    assert len(jobs) == 2
    for job, rate in zip(jobs, ("0.1", "0.01"), strict=True):
        run = folder / "runs" / str(job.job_id)
        job.wait_for(3)
        lines = (run / "train.log").read_text().splitlines()
        assert {line.rpartition(" at ")[2] for line in lines} == {rate}
        numbers = [int(line.partition("epoch ")[2].split()[0]) for line in lines]
        assert numbers == list(range(len(numbers))), "rank 0 alone logs, and each epoch once"
        assert f"optimizer.lr={rate}" in (run / ".hydra" / "overrides.yaml").read_text()
        job.cancel()
    assert sorted(each.name for each in (folder / "runs").iterdir()) == [str(each.job_id) for each in jobs]
    assert not (folder / "outputs").exists()


def test_workers_in_satellites_have_the_modules_that_the_job_script_has_loaded(alone: Lab) -> None:
    if not MODULES.exists():
        missing("environment-modules")
    folder = a_folder(alone, "modules")
    (script,) = blocks("modules", "bash")
    names = re.search(r"^module load (\S+) (\S+)$", script, re.MULTILINE)
    assert names is not None
    tools = write_modules(folder / "modulefiles", *names.groups())
    (folder / "train.py").write_text(FACTS + TRAINING + EPOCHS)
    assert "/shared/envs/train/bin/activate" in script
    script = script.replace("/shared/envs/train", shlex.quote(sys.prefix))
    (folder / "train.sbatch").write_text(with_fewer(script, 4))
    line = f"module use {shlex.quote(str(folder / 'modulefiles'))} && sbatch train.sbatch"
    (job,) = submitted(alone, folder, type_in(alone, folder, line, shell=("bash", "-l", "-c")))
    job.wait_for(4)
    seen = [json.loads(line) for line in (folder / "seen").read_text().splitlines()]
    assert len({each.pop("SLURM_JOB_ID") for each in seen}) > 1, "some workers are in satellites"
    assert len(seen) >= 4
    for each in seen:
        assert each["LOADEDMODULES"].split(":") == list(names.groups())
        assert each["CUDA_HOME"] == str(tools.parent)
        assert f"{tools.parent}/lib64" in each["LD_LIBRARY_PATH"].split(":")
        assert each["nvcc"] == str(tools / "nvcc")
        assert each["prefix"] == sys.prefix


def write_modules(folder: Path, python: str, cuda: str) -> Path:
    """Write the files of two modules of these names; the second one's folder of programs."""
    tools = folder / "tools" / "bin"
    tools.mkdir(parents=True)
    (tools / "nvcc").write_text("#!/bin/sh\n")
    (tools / "nvcc").chmod(0o755)
    paths = f"prepend-path PATH {tools}\nprepend-path LD_LIBRARY_PATH {tools.parent}/lib64\n"
    texts = {python: "prepend-path PATH /usr/bin\n", cuda: f"setenv CUDA_HOME {tools.parent}\n{paths}"}
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#%Module\n{text}")
    return tools


def test_a_notebook_writes_checks_submits_and_watches_a_script(alone: Lab) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = a_folder(alone, "notebook")
    write, *commands = blocks("jupyter", "")
    (read,) = blocks("jupyter", "python")
    first, begin, rest = write.partition("import torch.distributed as dist\n")
    assert (first, rest) == ("%%writefile train.py\n", "...\n")
    cells = [first + begin + TRAINING + EPOCHS, *commands, read + "print(list(sizes.values()))\n"]
    write_notebook(folder / "notebook.ipynb", cells)
    type_in(alone, folder, f"{shlex.quote(sys.executable)} -c {shlex.quote(EXECUTE)}")
    executed = json.loads((folder / "executed.ipynb").read_text())["cells"]
    _, submit, watch, table = ["".join(map(printed, cell["outputs"])) for cell in executed]
    assert "train.sbatch" in submit
    assert "4 of 1-4 workers" in watch
    assert "flexo: " in watch, "the end of the job's output"
    assert table == "[4]\n"


def printed(output: dict[str, object]) -> str:
    text = output.get("text", "")
    return "".join(text) if isinstance(text, list) else str(text)


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Write a notebook of these cells, as Jupyter saves it."""
    import nbformat.v4

    python = {"language_info": {"name": "python", "file_extension": ".py"}}
    notebook = nbformat.v4.new_notebook(metadata=python)
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    path.write_text(json.dumps(notebook))


def test_what_nbconvert_makes_of_a_notebook_is_a_script_that_grows(alone: Lab) -> None:
    packages = installed("recipes")
    folder = a_folder(alone, "converted")
    page = (ROOT / "docs" / "howto" / "recipes" / "jupyter.md").read_text()
    command = re.search(r"`(jupyter nbconvert [^`]+)`", page)
    assert command is not None
    guarded = "def main():\n    for epoch in range(epochs):\n        train_one(epoch)\n"
    write_notebook(folder / "notebook.ipynb", [TRAINING, guarded, 'if __name__ == "__main__":\n    main()\n'])
    recipes = packages["PYTHONPATH"]
    programs = f"{recipes}/bin:{alone.environment(None)['PATH']}"
    type_in(alone, folder, command[1], PATH=programs, JUPYTER_PATH=f"{recipes}/share/jupyter", **packages)
    type_in(alone, folder, "flexo check notebook.py && flexo init notebook.py --elastic 1-2")
    (job,) = submitted(alone, folder, type_in(alone, folder, "sbatch notebook.sbatch"))
    job.wait_for(2)


def test_wandb_has_one_run_for_a_job_that_grows_and_loses_rank_0(alone: Lab) -> None:
    packages = installed("wandb")
    folder = a_folder(alone, "wandb")
    (piece,) = blocks("wandb", "python")
    (folder / "train.py").write_text(f"import wandb\n{TRAINING}{piece}{LOGGED}")
    (folder / "train.sbatch").write_text("#!/bin/bash\nflexo run python train.py\n")
    line = "sbatch -n 2 --gpus-per-task=1 --elastic=2-4 train.sbatch"
    (job,) = submitted(alone, folder, type_in(alone, folder, line, WANDB_MODE="offline", **packages))
    job.wait_for(4)
    job.wait_until("a run", lambda: runs_of(folder), BOUND_S)
    assert [run for _, run in runs_of(folder)] == [f"job-{job.job_id}"]
    os.kill(int((folder / "rank0").read_text()), signal.SIGKILL)
    job.wait_until("the run of a successor", lambda: len(runs_of(folder)) > 1, BOUND_S)
    assert {run for _, run in runs_of(folder)} == {f"job-{job.job_id}"}
    done = len(epochs_of(job.output()))
    job.wait_until("more epochs", lambda: len(epochs_of(job.output())) > done + 2, BOUND_S)
    assert len(runs_of(folder)) == 2, "only those who are rank 0 begin a run"


def runs_of(folder: Path) -> list[tuple[str, str]]:
    """(time, id) of the folders that wandb has made."""
    found = [each.name.partition("-run-")[2] for each in folder.glob("wandb/offline-run-*")]
    return sorted((time, run) for time, _, run in (each.partition("-") for each in found))
