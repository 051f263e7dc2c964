"""The example's notebook, executed on a real cluster: it draws an elastic job while the job is resized."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from flexo_lab import Lab

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")
EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PICTURES: Final = 3
"""A picture for each call of `watch`."""
EXECUTE: Final = """
import sys
import nbformat
from nbclient import NotebookClient

class Counting(NotebookClient):
    updates = 0

    def process_message(self, message, cell, index):
        self.updates += message["msg_type"] == "update_display_data"
        return super().process_message(message, cell, index)

notebook = nbformat.read(sys.argv[1], as_version=4)
client = Counting(notebook, resources={"metadata": {"path": sys.argv[2]}})
client.execute()
nbformat.write(notebook, sys.argv[3])
print(client.updates)
"""
"""Executes a notebook in a folder, and prints how often its pictures were updated while it ran."""


@pytest.mark.training
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_notebook_draws_a_job_live_that_grows_shrinks_and_grows_again(lab: Lab) -> None:
    lab.start_flexod()  # tests before may have ended it
    folder = lab.scratch / "notebook"
    folder.mkdir()
    shutil.copytree(EXAMPLES / "digits", folder / "digits")
    done = folder / "done.ipynb"
    notebook = str(EXAMPLES / "resize.ipynb")
    ran = lab.run([sys.executable, "-c", EXECUTE, notebook, str(folder), str(done)], timeout=840)
    outputs = [each for cell in json.loads(done.read_text())["cells"] for each in cell.get("outputs", [])]
    pictures = [each["data"]["image/png"] for each in outputs if "image/png" in each.get("data", {})]
    assert len(set(pictures)) == PICTURES
    assert int(ran.stdout) > PICTURES, "each picture was drawn while the job went on"
    said = "".join(map(stream, outputs))
    assert "2 of 1-4 workers: capped at 2" in said
    assert "CANCELLED" in said
    sizes = [int(size) for size in said.rpartition("workers: ")[2].split()]
    assert sizes[0] == 1
    assert sizes.count(4) == 2
    assert min(sizes[sizes.index(4) :]) <= 2


def stream(output: dict[str, Any]) -> str:
    return "".join(output.get("text", "")) if output.get("name") == "stdout" else ""
