"""What goes into the Debian packages; that they install and work is tested in tests/packages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import build_debs
import manual
import pytest
import python_tree
import staged

DEBIAN = Path(build_debs.HERE) / "debian"


def test_the_daemon_takes_along_what_it_needs_and_nothing_of_training_or_development() -> None:
    needed = python_tree.needed()
    assert {"grpcio", "protobuf", "pydantic", "pydantic-core", "typer", "numpy"} <= needed
    assert {"etcd3gw", "requests", "urllib3", "futurist"} <= needed  # several flexods' lease may be in etcd
    assert {"starlette", "uvicorn", "jinja2"} <= needed  # the package flexo-web has only the unit
    assert not needed & {"playwright", "pytest", "ruff", "torch", "horovod", "mypy", "flexo"}


@pytest.mark.processes
def test_the_package_of_the_plugin_has_the_manual_of_the_helper_that_it_brings(tmp_path: Path) -> None:
    try:
        package = build_debs.plugin_package(tmp_path)
    except staged.CannotBuild as error:
        pytest.skip(str(error))
    command = ["dpkg-deb", "--contents", str(package)]
    held = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "./usr/sbin/flexo-partition\n" in held
    for page in manual.plugin_pages():
        assert f"./usr/share/man/{page.path}.gz\n" in held


def test_scripts_of_packages_are_plain_shell_that_stops_at_errors() -> None:
    scripts = [path for path in DEBIAN.glob("*/*") if path.name in build_debs._SCRIPTS]
    assert scripts
    for script in scripts:
        lines = script.read_text().splitlines()
        assert lines[0] == "#!/bin/sh"
        assert "set -e" in lines


@pytest.mark.parametrize("name", build_debs.PACKAGES)
def test_every_word_in_a_control_file_is_filled_by_the_builder(name: str) -> None:
    source = Path(build_debs.__file__).read_text()
    for word in set(re.findall(r"@([A-Z_]+)@", (DEBIAN / name / "control").read_text())):
        assert f'"{word}"' in source


@pytest.mark.processes
def test_the_next_release_of_slurm_is_after_all_patches_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPPFLAGS", "-DSLURM_VERSION_NUMBER=0x180b05")
    monkeypatch.setattr(staged, "HEADER", "stddef.h")
    assert staged.slurm_release() == ("24.11", "24.12")
    monkeypatch.setattr(staged, "HEADER", "no/such/header.h")
    with pytest.raises(staged.CannotBuild, match="libslurm-dev"):
        staged.slurm_release()
