"""The two wheels by pip, in fresh environments in a folder with a blank in its name.

Needs the network: pip downloads from the index that this machine has configured.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from users_modules import importing

import flexo
from flexo_cli import without_site

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("daemon", "horovod_elastic", "protos", "yarn_plugin", "packages")
OF_SITES: Final = {"numpy", "scipy", "matplotlib", "starlette", "uvicorn", "structlog", "prometheus-client"}
EXTRAS: Final = ("flexo_protos.etcd", "flexo_protos.leader_leases.etcd_store")
"""Modules that need an extra."""

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def run(self, program: str, *arguments: str | Path, code: int = 0) -> str:
        """What a program of the environment prints."""
        command = [str(self.folder / "bin" / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        return said

    def pip(self, *arguments: str | Path, code: int = 0) -> str:
        """What pip says."""
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *arguments, code=code)

    def installed(self) -> set[str]:
        """The names of what pip lists."""
        listed = json.loads(self.pip("list", "--format", "json"))
        return {each["name"].lower().replace("_", "-") for each in listed}


def wheels_of(version: str, folder: Path) -> tuple[Path, Path]:
    """The wheels for users and for sites, of this checkout as `version`."""
    copy = folder / "source"
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    stated = copy / "daemon" / "flexo" / "__init__.py"
    stated.write_text(stated.read_text().replace(f'"{flexo.__version__}"', f'"{version}"'))
    build = [sys.executable, str(copy / "packages" / "own_wheels.py"), str(folder)]
    subprocess.run(build, check=True)
    names = ("flexo", "flexo_site")
    users, sites = (folder / f"{name}-{version}-py3-none-any.whl" for name in names)
    return users, sites


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return wheels_of(flexo.__version__, tmp_path_factory.mktemp("two wheels"))


def test_users_install_one_wheel_sites_both_and_what_is_removed_is_gone(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    users, sites = wheels
    environment = Environment(tmp_path / "an environment")
    before = environment.installed()
    environment.pip("install", users)
    assert OF_SITES & environment.installed() == set()
    assert int(environment.run("python", "-c", importing(left_out=EXTRAS))) > 100
    assert " jobs " in environment.run("flexo", "--help")
    assert "no sbatch" in environment.run(
        "python",
        "-c",
        "import flexo, os; os.environ['PATH'] = ''\n"
        "try: flexo.submit('train.sbatch', elastic='2-8')\n"
        "except Exception as error: print('no sbatch' if 'sbatch is not on PATH' in str(error) else error)",
    )
    for command in (each.name for each in without_site.COMMANDS):
        assert sites.name in environment.run("flexo", command, "--anything", code=1)

    environment.pip("install", users, sites)
    assert environment.pip("check") == "No broken requirements found.\n"
    assert environment.run("flexod", "--version") == f"flexod {flexo.__version__}\n"
    assert "--listen" in environment.run("flexo-web", "--help")
    dump = ROOT / "examples" / "site" / "sacct.txt"
    told = environment.run("flexo", "whatif", "--sacct", dump, "--report", tmp_path / "page.html")
    assert told.startswith("600 GPU jobs")
    assert (tmp_path / "page.html").stat().st_size > 10_000

    environment.pip("uninstall", "--yes", "flexo-site")
    assert sites.name in environment.run("flexo", "doctor", code=1)
    assert "--user" in environment.run("flexo", "jobs", "--help")
    environment.pip("uninstall", "--yes", "flexo")
    assert not [path for path in environment.folder.rglob("*flexo*") if not path.name.startswith(".")]
    assert before <= environment.installed()


def test_pip_refuses_wheels_of_two_versions_and_a_site_without_its_users_wheel(
    wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    _, sites = wheels
    others, _ = wheels_of("99.0.0", tmp_path)
    environment = Environment(tmp_path / "an environment")
    refused = environment.pip("install", others, sites, code=1)
    assert f"flexo-site {flexo.__version__} depends on flexo=={flexo.__version__}" in refused
    assert "The user requested flexo 99.0.0" in refused
    alone = environment.pip("install", "--no-index", sites, code=1)
    assert f"flexo=={flexo.__version__}" in alone
    assert "flexo" not in environment.installed()
