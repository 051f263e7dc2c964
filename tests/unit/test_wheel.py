"""What the wheel brings: an editable install hides what a wheel lacks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import flexo

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "flexo": "daemon/",
    "flexo_protos": "protos/",
    "flexo_yarn": "yarn_plugin/",
    "horovod_elastic": "",
}
"""The packages that users meet, with the folders that they are in."""


@pytest.fixture(scope="module")
def listed() -> list[str]:
    """All files that the wheel is made of."""
    folders = (
        "daemon",
        "horovod_elastic",
        "protos",
        "yarn_plugin",
        "setup.py",
        "pyproject.toml",
        "README.md",
    )
    git = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return git.stdout.split()


@pytest.fixture(scope="module")
def wheel(listed: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of a copy, so that nothing is left in this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for name in listed:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    subprocess.run([sys.executable, *build, str(folder), str(copy)], check=True)
    (made,) = folder.glob("flexo-*.whl")
    return made


def test_the_wheel_holds_every_module_and_what_workers_and_administrators_need(
    wheel: Path, listed: list[str]
) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for top, folder in PACKAGES.items():
        modules = [name.removeprefix(folder) for name in listed if name.startswith(f"{folder}{top}/")]
        wanted = {name for name in modules if name.endswith((".py", ".json", ".yml"))}
        assert wanted - held == set()
    protos = [Path(name) for name in listed if name.endswith(".proto")]
    made = {f"flexo_protos/{proto.parent.name}/{proto.stem}_pb2.py" for proto in protos}
    with_services = [proto for proto in protos if "\nservice " in (ROOT / proto).read_text()]
    made |= {f"flexo_protos/{proto.parent.name}/{proto.stem}_pb2_grpc.py" for proto in with_services}
    assert {"flexo_protos/hadoop/ipc_pb2.py", "flexo_protos/v1/jobs_pb2_grpc.py"} < made
    assert made - held == set()
    assert "flexo/flexo.toml.example" in held
    of_pages = [name.removeprefix("daemon/") for name in listed if name.startswith("daemon/flexo_web/")]
    assert "flexo_web/templates/now.html" in of_pages
    assert set(of_pages) - held == set()


def test_what_is_installed_of_it_starts_and_is_not_this_checkout(wheel: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    (site,) = own.glob("lib/python3*/site-packages")
    # what it depends on; a file named in a .pth is not read for more of them, so this checkout stays unseen
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(own / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(own / "bin" / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        return done.stdout

    for package in PACKAGES:
        where = run("python", "-c", f"import {package}; print({package}.__file__)")
        assert Path(where.strip()).is_relative_to(own)
    declares = "import flexo; print(flexo.elastic(epoch=3).epoch)"
    assert run("python", "-c", declares) == "3\n"
    assert run("flexo", "version") == f"flexo {flexo.__version__}\n"
    assert run("flexod", "--version") == f"flexod {flexo.__version__}\n"
    example = next(site.glob("flexo/flexo.toml.example"))
    assert run("flexod", "--check-config", "--config", str(example)) == f"{example}: in order\n"
