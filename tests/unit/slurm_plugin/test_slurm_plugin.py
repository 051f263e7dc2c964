"""slurm_plugin/ without Slurm: its own checks, and that its two readers of ranges agree with the daemon's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.model.ranges import BadRange, Range

pytestmark = pytest.mark.processes

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[2] / "slurm_plugin"
LUA = HERE / "check_elastic.lua"
NO_LIMIT = 999_999_999
INTERPRETERS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)]


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="session")
def range_check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The check of range.c, built with the sanitizers by the plugin's own Makefile."""
    if not INTERPRETERS or not shutil.which("cc"):
        pytest.skip("needs a C compiler and lua5.1 (`make check` in slurm_plugin/ insists on them)")
    build = tmp_path_factory.mktemp("slurm_plugin")
    done = run("make", "-C", PLUGIN, "check", f"BUILD={build}")
    assert done.returncode == 0, done.stdout + done.stderr
    return build / "range_check"


def test_the_c_reader_passes_its_checks_under_the_sanitizers(range_check: Path) -> None:
    done = run(range_check)
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_options_and_environments_break_nothing_in_the_plugin(tmp_path: Path) -> None:
    if run("cc", "-E", "-include", "slurm/spank.h", "-x", "c", "/dev/null").returncode != 0:
        pytest.skip("Slurm's development files are not installed")
    done = run("make", "-C", PLUGIN, "fuzz", f"BUILD={tmp_path}", "FUZZ_S=1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lua", INTERPRETERS)
def test_the_lua_module_passes_its_checks(lua: str) -> None:
    done = run(lua, LUA, PLUGIN)
    assert done.returncode == 0, done.stdout + done.stderr


def readings(*command: str | Path, values: list[str], limit: int) -> list[str]:
    done = run(*command, str(limit), *values)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(values), done.stdout
    return lines


def expected(value: str) -> str | None:
    try:
        return str(Range.parse(value))
    except BadRange:
        return None


number = st.one_of(
    st.integers(0, 12).map(str),
    st.integers(0, 2**70).map(str),
    st.sampled_from(["", "00", "08", "+1", "-1", " 1", "1 ", "1x", "0x1", "1e1", "999999999", "1000000000"]),
)
value = st.one_of(
    st.builds("{}-{}".format, number, number),
    st.text(st.sampled_from("0129-+ \t;}\"'x\n\x7fé"), max_size=12),
)


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(values=st.lists(value, min_size=40, max_size=60))
def test_c_lua_and_the_daemon_read_every_range_alike(range_check: Path, values: list[str]) -> None:
    in_c = readings(range_check, values=values, limit=NO_LIMIT)
    in_lua = readings(INTERPRETERS[0], LUA, PLUGIN, values=values, limit=NO_LIMIT)
    for text, c, lua in zip(values, in_c, in_lua, strict=True):
        range_read = expected(text)
        if range_read is None:
            assert c.startswith("--elastic='"), (text, c)
            assert lua.startswith("--elastic='"), (text, lua)
        else:
            assert (c, lua) == (range_read, range_read), text


@pytest.mark.parametrize(
    "text", ["8-2", "0-3", "", "2", "2-8x", "9999999999-1", "2-65", "\x1b[31m", "9" * 100, "a" * 40, "a" * 41]
)
def test_c_and_lua_refuse_in_the_same_words(range_check: Path, text: str) -> None:
    assert readings(range_check, values=[text], limit=64) == readings(
        INTERPRETERS[0], LUA, PLUGIN, values=[text], limit=64
    )


def test_make_without_slurms_headers_says_what_to_install() -> None:
    done = run("make", "-C", PLUGIN, "-B", "CPPFLAGS=-nostdinc")
    assert done.returncode != 0
    assert "slurm/spank.h is missing" in done.stderr
    assert "libslurm-dev" in done.stderr


def test_make_install_puts_every_file_in_its_place(tmp_path: Path) -> None:
    if run("cc", "-E", "-include", "slurm/spank.h", "-x", "c", "/dev/null").returncode != 0:
        pytest.skip("Slurm's development files are not installed")
    done = run(
        "make", "-C", PLUGIN, "install", f"DESTDIR={tmp_path}", "PREFIX=/opt/flexo", "LIBDIR=/opt/flexo/lib"
    )
    assert done.returncode == 0, done.stderr
    placed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    documents = "opt/flexo/share/doc/flexo-slurm-plugin/"
    assert placed == {
        "opt/flexo/lib/spank_elastic.so",
        "etc/slurm/job_submit_elastic.lua",
        documents + "README.md",
        documents + "slurm.conf.example",
        documents + "plugstack.conf.example",
        documents + "job_submit.lua.example",
        documents + "prolog_sharing.example",
    }
