"""What the two wheels bring: an editable install hides what a wheel lacks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from users_modules import importing

import flexo
from flexo_cli import without_site
from flexo_cli.site import commands

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"daemon/": "", "horovod_elastic/": "horovod_elastic/", "protos/": "", "yarn_plugin/": ""}
"""Folders of the checkout, and where their files are in a wheel."""
OF_BOTH = ("flexo", "flexo_cli")
"""Packages with files in both wheels."""


@pytest.fixture(scope="module")
def listed() -> list[str]:
    """All files that the wheels are made of."""
    names = [*FOLDERS, "packages", "setup.py", "pyproject.toml", "README.md", "LICENSE"]
    git = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in git.stdout.split() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def copy(listed: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without what was built or forgotten here."""
    folder = tmp_path_factory.mktemp("a copy")
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheels(copy: Path) -> tuple[Path, Path]:
    """That for users, and that for sites."""
    build = [sys.executable, str(copy / "packages" / "own_wheels.py"), str(copy / "wheels")]
    subprocess.run(build, check=True)
    (users,) = copy.glob("wheels/flexo-*.whl")
    (sites,) = copy.glob("wheels/flexo_site-*.whl")
    return users, sites


def held(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_each_file_is_in_one_of_the_wheels(wheels: tuple[Path, Path], listed: list[str]) -> None:
    users, sites = map(held, wheels)
    assert users & sites == set()
    wanted = {
        beginning + name.removeprefix(folder)
        for name in listed
        for folder, beginning in FOLDERS.items()
        if name.startswith(folder)
    }
    no_package = {name for name in wanted if not name.startswith(("flexo_", "flexo/", "horovod_elastic/"))}
    no_package |= {name for name in wanted if name.endswith(".proto")}
    assert wanted - no_package - users - sites == set()
    protos = [Path(name) for name in listed if name.endswith(".proto")]
    made = {f"flexo_protos/{proto.parent.name}/{proto.stem}_pb2.py" for proto in protos}
    with_services = [proto for proto in protos if "\nservice " in (ROOT / proto).read_text()]
    made |= {f"flexo_protos/{proto.parent.name}/{proto.stem}_pb2_grpc.py" for proto in with_services}
    assert {"flexo_protos/hadoop/ipc_pb2.py", "flexo_protos/v1/jobs_pb2_grpc.py"} < made
    assert made - users == set()
    assert {"flexo/flexo.toml.example", "flexo_web/templates/now.html"} < sites
    assert {name.partition("/")[0] for name in users} & {name.partition("/")[0] for name in sites} == set(
        OF_BOTH
    )


def test_the_commands_that_users_are_told_to_install_are_those_for_sites() -> None:
    assert [command.name for command in without_site.COMMANDS] == [
        command.name for command in commands.COMMANDS
    ]
    assert [command.name for command in without_site.OF_YARN] == [
        command.name for command in commands.OF_YARN
    ]


OF_SITES = ("numpy", "scipy", "matplotlib", "structlog", "prometheus_client", "starlette", "uvicorn")
"""Packages that the wheel for users does not require."""


def test_what_is_installed_of_them_starts_and_is_not_this_checkout(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    (site,) = own.glob("lib/python3*/site-packages")
    # what they depend on; a file named in a .pth is not read for more of them, so this checkout stays unseen
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(own / "bin" / "python")]

    def run(*command: str, code: int = 0) -> str:
        program = str(own / "bin" / command[0])
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    users, sites = wheels
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(users)], check=True)
    for package in ("flexo", "flexo_cli", "flexo_protos", "flexo_yarn", "horovod_elastic"):
        where = run("python", "-c", f"import {package}; print({package}.__file__)")
        assert Path(where.strip()).is_relative_to(own)
    assert run("python", "-c", "import flexo; print(flexo.elastic(epoch=3).epoch)") == "3\n"
    assert run("python", "-c", "import flexo; print(flexo.submit.__module__)") == "flexo_cli.api\n"
    assert run("flexo", "version") == f"flexo {flexo.__version__}\n"
    assert not (own / "bin" / "flexod").exists()
    assert int(run("python", "-c", importing(refused=OF_SITES))) > 100
    for line in (["doctor"], ["whatif", "--sacct", "dump.txt"], ["lab", "up", "--help"], ["yarn", "doctor"]):
        said = run("flexo", *line, code=1)
        assert f"flexo_site-{flexo.__version__}-py3-none-any.whl" in said
        assert f"{own}/bin/python" in said
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(sites)], check=True)
    assert "--check-slurm-conf" in run("flexo", "doctor", "--help")
    assert run("flexod", "--version") == f"flexod {flexo.__version__}\n"
    example = next(site.glob("flexo/flexo.toml.example"))
    assert run("flexod", "--check-config", "--config", str(example)) == f"{example}: in order\n"


@pytest.mark.parametrize("what", ["wheel", "install"])
def test_a_checkout_makes_no_third_wheel(copy: Path, tmp_path: Path, what: str) -> None:
    where = ["--wheel-dir", str(tmp_path)] if what == "wheel" else ["--target", str(tmp_path)]
    options = ["--no-deps", "--no-build-isolation", "--no-index", *where]
    done = subprocess.run(
        [sys.executable, "-m", "pip", what, *options, str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "make wheel" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
