"""The README's table of what works, which the site's home page has, too: its versions are those of the tests,
and each row names tests that run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import horovod_wheels
import pytest
from written_pages import ROOT, text_of

from flexo.clusters import registry
from flexo.clusters.slurm.releases import TESTED
from flexo_lab.yarn.jars import hadoop_version
from horovod_elastic.script_check.examine import NOT_RESIZED, check
from horovod_elastic.script_check.findings import Level

sys.path.append(str(ROOT / "tests" / "slurm"))

from matrix.systems import SUITES

MAKEFILE = (ROOT / "Makefile").read_text()
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SKIPS = {"skip", "skipif", "importorskip"}
DEBIANS = {"bookworm": "Debian 12", "trixie": "Debian 13", "forky": "testing"}
"""What the table calls the suites in which Slurm's releases are tested."""
HEAD = "| | tested | designed, not run yet | unsupported | kept true by |\n|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    what: str
    tested: str
    designed: str
    unsupported: str
    tests: str


def rows() -> dict[str, Row]:
    """The rows, by their first cell."""
    table = text_of("README.md").split(HEAD)[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: Row(*row) for row in cells}


def test_what_is_tested_is_said_of_all_that_a_reader_asks_for() -> None:
    assert list(rows()) == ["Scripts", "Frameworks", "GPUs", "Collectives", "Clusters", "Slurm", "Systems"]


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.what)
def test_each_row_leads_to_tests_that_run(row: Row) -> None:
    """A file that `make test` may skip is run by a target, or by hand on a page, to which the row leads."""
    targets = re.findall(r"`make ([a-z-]+)`", row.tests)
    assert files_of(row) or targets
    there = re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", MAKEFILE, re.MULTILINE)
    assert set(targets) <= set(there)
    recipes = "".join(map(recipe_of, targets))
    pages = "".join(text_of(page) for page in re.findall(r"\]\((docs/evidence/\w+\.md)", row.tested))
    for file in files_of(row):
        by_hand = str(Path(file).parent) in pages
        assert not may_be_skipped((ROOT / file).read_text()) or file in recipes or by_hand, file


def files_of(row: Row) -> list[str]:
    """The files of tests that a row leads to."""
    return re.findall(r"\]\((tests/[\w/]+\.py)\)", row.tests)


def recipe_of(target: str) -> str:
    """The lines of a target of make."""
    return re.split(rf"^{target}:.*\n", MAKEFILE, flags=re.MULTILINE)[-1].partition("\n\n")[0]


def may_be_skipped(source: str) -> bool:
    """Whether a whole file of tests may be skipped, even where all have to run."""
    return not SKIPS.isdisjoint(attributes(ast.parse(source)))


def attributes(node: ast.AST) -> Iterator[str]:
    """The attributes that a file uses. A single test decides for itself; a function that fails
    instead of skipping, where all tests have to run, skips nothing there."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            inside = set(attributes(ast.Module(child.body, [])))
            yield from () if child.name.startswith("test_") or "fail" in inside else inside
        elif isinstance(child, ast.Attribute):
            yield child.attr
            yield from attributes(child)
        else:
            yield from attributes(child)


@pytest.mark.parametrize(
    ("source", "skipped"),
    [
        ("torch = pytest.importorskip('torch')\n", True),
        ("def needs(what):\n    return pytest.mark.skipif(what)\n", True),
        ("def test_one():\n    pytest.skip('this Slurm is old')\n", False),
        ("def lab():\n    (pytest.fail if CI else pytest.skip)('no Slurm')\n", False),
    ],
)
def test_a_file_that_may_be_skipped_is_found(source: str, skipped: bool) -> None:
    assert may_be_skipped(source) == skipped


def test_the_releases_are_those_that_tests_run_on() -> None:
    pinned = re.search(r'^torch = \["torch==(\d+\.\d+)\.', text_of("pyproject.toml"), re.MULTILINE)
    assert pinned is not None
    horovod = horovod_wheels.VERSION.rpartition(".")[0]
    scripts = rows()["Scripts"].tested
    assert f"PyTorch {pinned[1]}:" in scripts
    assert f"Horovod {horovod}:" in scripts
    assert f"Hadoop {hadoop_version()})" in rows()["Clusters"].tested
    slurm = rows()["Slurm"]
    assert f"[{', '.join(map(str, TESTED))}]" in slurm.tested
    assert slurm.designed.endswith(f"from {TESTED[0]} on")
    assert slurm.unsupported == f"before {TESTED[0]}"


def test_the_debians_are_those_of_the_releases_of_slurm() -> None:
    assert [suite.slurm for suite in SUITES] == list(map(str, TESTED))
    first, *others = (DEBIANS[suite.name] for suite in SUITES)
    tested = rows()["Systems"].tested
    assert tested.startswith(f"{first}; {' and '.join(others)} [without training]")
    assert f"On {first}, as root" in text_of("README.md")
    packages = re.search(
        r"Debian release that your cluster runs: (\d+) or (\d+)", text_of("docs/howto/install.md")
    )
    assert packages is not None
    assert {f"Debian {each}" for each in packages.groups()} <= {first, *others}


def test_the_frameworks_are_those_whose_releases_were_tried() -> None:
    now, before = (
        dict(re.findall(r"^([\w-]+)==(\S+)$", text_of(page), re.MULTILINE))
        for page in ("tests/torch_matrix/requirements.txt", "tests/training/previous_frameworks.txt")
    )
    page = text_of("docs/howto/frameworks.md")
    for name, package in (
        ("Accelerate", "accelerate"),
        ("HF's Trainer", "transformers"),
        ("Lightning", "lightning"),
    ):
        assert name in rows()["Frameworks"].tested
        row = re.search(rf"^\| .*{package}.* \| (.*) \|$", page, re.MULTILINE | re.IGNORECASE)
        assert row is not None
        assert row[1] == f"{now[package]}, {before[package]}"


def test_scripts_of_what_is_unsupported_keep_their_size_and_are_told_why(tmp_path: Path) -> None:
    called = [
        *rows()["Scripts"].unsupported.split(", "),
        *rows()["Frameworks"].unsupported.split(", "),
        *rows()["Collectives"].unsupported.split(", "),
    ]
    assert called == ["TensorFlow", "DeepSpeed", "Megatron-LM", "MPI"]
    packages = {name: package for package, name in NOT_RESIZED.items()}
    for name in called:
        script = tmp_path / "train.py"
        script.write_text(f"import {packages[name]}\n")
        (finding,) = check(script).findings
        assert finding.level is Level.KEEPS
        assert name in finding.what


def test_the_collectives_are_those_that_a_resizable_group_has() -> None:
    source = ast.parse((ROOT / "horovod_elastic" / "worker" / "ddp" / "torchs_own.py").read_text())
    (backends,) = (
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_BACKEND_TYPES"
    )
    assert isinstance(backends, ast.Dict)
    tested = rows()["Collectives"].tested.lower()
    assert [ast.literal_eval(key) for key in backends.keys if key] == re.findall("gloo|nccl|mpi|ucc", tested)


def test_the_clusters_are_the_kinds_that_flexod_has_and_as_large_as_the_largest_lab() -> None:
    clusters = rows()["Clusters"]
    named = {name for name in (*registry.names(), "kubernetes") if name in clusters.tested.lower()}
    assert named == set(registry.names())
    assert clusters.unsupported.lower() not in registry.names()
    sizes = [
        int(nodes)
        for folder in ("chaos", "slurm", "training")
        for file in (ROOT / "tests" / folder).rglob("*.py")
        for nodes in re.findall(r"\bnodes=(\d+)", file.read_text())
    ]
    assert f"up to {NUMBERS[max(sizes)]} nodes with real training" in clusters.tested


def test_what_is_tested_on_gpus_says_on_how_many_and_leads_to_what_was_seen() -> None:
    """One GPU for ten minutes: as long as that is all, no row may claim more."""
    on_gpus = [row for row in rows().values() if re.search("NCCL|H100|real GPUs", row.tested)]
    assert [row.what for row in on_gpus] == ["GPUs", "Collectives"]
    for row in on_gpus:
        assert re.search(r"\[one (GPU|H100)\]\(docs/evidence/gpu\.md\)", row.tested)
        assert "several GPUs" in row.designed
