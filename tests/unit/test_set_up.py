"""Set-up and the Makefile: what cannot work is said first, and a folder's name may hold spaces and quotes.

Nothing is downloaded: setup.sh is stopped by what it checks first, and the programs of .venv are stand-ins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ODD_NAMES = ["it's a clone", 'a "clone" of\tit', "$HOME `id` & more;"]
STAND_IN = '#!/bin/sh\necho "${0##*/} $*" >>"$CLONE/calls"\n'


@pytest.fixture(params=ODD_NAMES)
def clone(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A checkout's Makefiles and setup.sh, in a folder that everybody may enter (pytest's own may not be)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        made = Path(folder) / request.param / "flexo"
        made.mkdir(parents=True)
        for name in ("Makefile", "setup.sh", "packages/horovod_wheels.py"):
            (made / name).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / name, made / name)
        yield made


def set_up(clone: Path, *arguments: str, user: int | None = None, **environment: str) -> tuple[int, str]:
    """Exit code of setup.sh and what it said. It must have ended before it began to install anything."""
    before = sorted(clone.rglob("*"))
    done = subprocess.run(
        [str(clone / "setup.sh"), *arguments],
        env={**os.environ, "FLEXO_TORCH": "", **environment},
        capture_output=True,
        text=True,
        user=user,
        timeout=120,
    )
    assert sorted(clone.rglob("*")) == before
    return done.returncode, done.stderr


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_lab_is_refused_to_ordinary_users_before_anything_is_installed(clone: Path, target: str) -> None:
    code, said = set_up(clone, "all", f"--lab={target}", user=NOBODY if os.geteuid() == 0 else None)
    assert code == 1
    for fact in (f"make {target}", "root", "make test-unit"):
        assert fact in said


def test_every_target_that_needs_a_lab_says_so_to_set_up() -> None:
    text = (ROOT / "Makefile").read_text()
    on_slurm = (
        "demo",
        "demo-loan",
        "test-slurm",
        "test-training",
        "test-chaos",
        "bench-runtime",
        "bench-torch",
    )
    for target, what in [*((name, "all") for name in on_slurm), ("test", "yarn"), ("test-yarn", "yarn")]:
        recipe = text.partition(f"\n{target}: ")[2].partition("\n\n")[0]
        assert f"./setup.sh {what} --lab=$@" in recipe, target


@pytest.mark.parametrize(
    ("python", "facts"),
    [
        ("/no/such/python", ("/no/such/python", "no such program")),
        ("/bin/true", ("/bin/true", "not a Python")),
        ("old", ("cpython 2.9", "compiled")),
        ("bare", ("PyTorch is not installed",)),
    ],
)
def test_a_python_whose_pytorch_cannot_be_used_is_refused_at_once(
    clone: Path, python: str, facts: tuple[str, ...]
) -> None:
    old, bare = clone / "old", clone / "bare"
    old.write_text("#!/bin/sh\necho cpython 2.9\n")
    # -S: without the packages of this machine, whatever they are
    bare.write_text('#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n')
    for program in (old, bare):
        program.chmod(0o755)
    code, said = set_up(clone, "all", FLEXO_TORCH={"old": str(old), "bare": str(bare)}.get(python, python))
    assert code == 1
    for fact in ("FLEXO_TORCH=", "FLEXO_TORCH=download", *facts):
        assert fact in said


def test_an_unknown_argument_is_a_usage_error(clone: Path) -> None:
    code, said = set_up(clone, "everything")
    assert code == 2
    assert "native" in said


@pytest.mark.parametrize(
    ("target", "calls"),
    [
        ("demo", ["setup.sh all --lab=demo", "python -m flexo_demos.elastic"]),
        ("demo-loan", ["setup.sh all --lab=demo-loan", "python -m flexo_demos.loans"]),
        ("setup-native", ["setup.sh native"]),
        (
            "test-training",
            [
                "setup.sh all --lab=test-training",
                "setup.sh native",
                "pytest tests/training -m not native",
                "pytest tests/training -m native",
            ],
        ),
        (
            "bench-runtime",
            ["setup.sh all --lab=bench-runtime", "setup.sh native", "python -m flexo_bench.runtime"],
        ),
        (
            "bench-torch",
            ["setup.sh all --lab=bench-torch", "setup.sh torchft", "python -m flexo_bench.elastic_ddp"],
        ),
        (
            "test-torch",
            [
                "setup.sh previous-torch",
                *["pytest tests/unit/horovod_elastic/test_torchs_own.py"] * 2,
                "pytest tests/training/test_ddp.py -k grows_and_shrinks",
            ],
        ),
        (
            "test-frameworks",
            ["setup.sh frameworks", *["pytest tests/training/test_frameworks.py"] * 2],
        ),
        ("wheel", ["setup.sh unit", "python packages/own_wheels.py build/wheel"]),
        (
            "lint",
            [
                "setup.sh lint",
                "ruff check .",
                "ruff format --check .",
                "mypy",
                "lint-imports --no-logo",
                "python packages/retired_names.py",
            ],
        ),
    ],
)
def test_targets_of_make_work_whatever_the_folder_is_called(
    clone: Path, target: str, calls: list[str]
) -> None:
    made(clone, target)
    assert called(clone) == calls


def test_all_tests_fail_if_horovods_library_cannot_be_built(clone: Path) -> None:
    failing = STAND_IN + '[ "$1" != native ]\n'
    with pytest.raises(subprocess.CalledProcessError):
        made(clone, "test", set_up=failing)
    calls = called(clone)
    assert "setup.sh native" in calls
    assert any(call.startswith("pytest tests -m not native") for call in calls), "all others ran"
    assert not any(call.startswith("pytest tests -m native") for call in calls)


def test_all_tests_include_those_of_horovods_library(clone: Path) -> None:
    made(clone, "test")
    calls = called(clone)
    assert calls.index("setup.sh native") < calls.index(
        next(call for call in calls if call.startswith("pytest tests -m native"))
    )


@pytest.mark.parametrize(("target", "gets"), [("test", False), ("test-all", True)])
def test_only_all_tests_get_the_packages_of_recipes(clone: Path, target: str, gets: bool) -> None:
    made(clone, target)
    assert ("setup.sh recipes" in called(clone)) == gets


def test_what_fails_beside_other_tests_runs_once_more_alone(clone: Path) -> None:
    fails_beside_others = 'case "$*" in *--last-failed*) ;; "tests -m"*) false ;; esac\n'
    made(clone, "test", pytest=STAND_IN + fails_beside_others)
    alone = [call for call in called(clone) if "--last-failed" in call]
    assert len(alone) == 3
    assert not any("--numprocesses" in call for call in alone)


@pytest.mark.parametrize("fails", ["tests/unit", "*--last-failed"])
def test_a_unit_test_that_fails_and_what_fails_alone_fail_all(clone: Path, fails: str) -> None:
    failing = f'case "$*" in {fails}*) false ;; "tests -m"*) false ;; esac\n'
    with pytest.raises(subprocess.CalledProcessError):
        made(clone, "test", pytest=STAND_IN + failing)


ENDS = {
    "tests were not collected": "exit 2",
    "pytest broke": "exit 3",
    "a file was not read": 'echo \'  "tests/x.py": true\' >"$d/v/cache/lastfailed"; exit 1',
}
"""What a stand-in of pytest does, by what then has happened; its cache is in $d."""


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_run_that_may_not_have_run_all_tests_has_failed(clone: Path, end: str) -> None:
    folder = 'd=${*#*cache_dir=}; d=${d%% *}; mkdir -p "$d/v/cache"\n'
    ends = f'case "$*" in *--last-failed*) ;; "tests -m"*) {folder}{end} ;; esac\n'
    with pytest.raises(subprocess.CalledProcessError):
        made(clone, "test", pytest=STAND_IN + ends)
    assert not any("--last-failed" in call for call in called(clone))


def called(clone: Path) -> list[str]:
    """What has been called there, in order."""
    return [line.rstrip() for line in (clone / "calls").read_text().splitlines()]


def made(clone: Path, target: str, set_up: str = STAND_IN, pytest: str = STAND_IN) -> None:
    """`make TARGET` there, with programs that write down how they are called."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / "setup.sh").write_text(set_up)
    for name in ("python", "pytest", "ruff", "mypy", "lint-imports"):
        program = clone / ".venv" / "bin" / name
        program.write_text(pytest if name == "pytest" else STAND_IN)
        program.chmod(0o755)
    (clone / "slurm_plugin").mkdir()
    (clone / "slurm_plugin" / "Makefile").write_text("check fuzz:\n\t@true\n")
    environment = {**os.environ, "CLONE": str(clone)}
    subprocess.run(["make", target], cwd=clone, env=environment, check=True, capture_output=True, timeout=120)


def test_the_plugin_is_installed_into_a_folder_of_any_name(clone: Path) -> None:
    if "$" in str(clone):
        pytest.skip("make itself expands a $ in what it is given")
    command = ["make", "-C", str(ROOT / "slurm_plugin"), "install-partition", f"DESTDIR={clone}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    installed = clone / "usr" / "sbin" / "flexo-partition"
    assert 'CONFIG = "/etc/flexo/partition.conf"' in installed.read_text()


def test_programs_of_the_environment_start_whatever_the_folder_is_called(clone: Path) -> None:
    environment, source = clone / ".venv", (clone / "setup.sh").read_text()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (line,) = [line for line in source.splitlines() if line.startswith("readonly RELOCATABLE=")]
    with (environment / "pyvenv.cfg").open("a") as file:
        file.write(line.split("'")[1] + "\n")
    wheel = wheel_with_a_program(clone)
    python = environment / "bin" / "python"
    install = [ROOT / ".venv" / "bin" / "uv", "pip", "install", "--offline", "--python", python, wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=60)
    link = clone / "link"
    link.symlink_to(environment / "bin" / "program")
    for start in (environment / "bin" / "program", link):
        assert subprocess.run([start], capture_output=True, text=True).stdout == "started\n"


def wheel_with_a_program(folder: Path) -> Path:
    """Of the program `program`, which prints a word."""
    wheel, told = folder / "program-1-py3-none-any.whl", "program-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("its_module.py", "def main():\n    print('started')\n")
        file.writestr(f"{told}/METADATA", "Metadata-Version: 2.1\nName: program\nVersion: 1\n")
        file.writestr(f"{told}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{told}/entry_points.txt", "[console_scripts]\nprogram = its_module:main\n")
        file.writestr(f"{told}/RECORD", "")
    return wheel
