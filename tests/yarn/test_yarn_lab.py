"""`flexo lab` with YARN: up, side by side, looked at, and taken down with nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from applications import BOUND_S, Application, wait_for

from flexo_lab import LabExists, LabSpec, NoSuchLab, bring_up
from flexo_lab.layout import labs_root
from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_yarn.site_settings import FLEX_QUEUE

FLEXO = str(Path(sys.executable).parent / "flexo")
NAME = f"yarncli-{os.getpid()}"


def flexo(*words: str, check: bool = True) -> str:
    done = subprocess.run([FLEXO, *words], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def left(name: str) -> list[str]:
    """Command lines of processes that a lab has left, and its directory."""
    folder = labs_root() / name
    found = [str(folder)] if folder.exists() else []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    yield
    flexo("lab", "down", NAME, check=False)  # the test has taken it down where it could
    assert left(NAME) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("lab")
def test_a_lab_from_the_command_line_stands_beside_another_one_with_its_containers() -> None:
    flexo("lab", "up", NAME, "--yarn", "--nodes", "2", "--gpus", "3")
    shown = json.loads(flexo("lab", "status", NAME, "--json"))
    assert (shown["kind"], shown["up"], shown["daemons_missing"]) == ("yarn", True, [])
    assert [(node["name"], node["state"], node["gpus"]) for node in shown["nodes"]] == [
        ("n1", "running", 3),
        ("n2", "running", 3),
    ]
    assert NAME in flexo("lab", "status")
    conf = flexo("lab", "shell", NAME, "--", "sh", "-c", "echo $HADOOP_CONF_DIR").strip()
    assert Path(conf, "yarn-site.xml").is_file()
    with pytest.raises(LabExists):
        bring_up_yarn(YarnLabSpec(name=NAME))
    with pytest.raises(LabExists):
        bring_up(LabSpec(name=NAME))

    application = Application.submit(YarnLab.load(NAME), FLEX_QUEUE)
    (container,) = application.grow(1, gpus=1)
    marker = YarnLab.load(NAME).scratch / "runs"
    application.start(container, f"touch {marker}; trap '' TERM; while :; do sleep 1; done")
    wait_for("its container", marker.exists)
    flexo("lab", "down", NAME)
    assert left(NAME) == []
    with pytest.raises(NoSuchLab):
        YarnLab.load(NAME)


@pytest.mark.thorough
def test_what_an_up_that_was_killed_has_left_is_cleared_away_by_the_next_one() -> None:
    up = subprocess.Popen([FLEXO, "lab", "up", NAME, "--yarn", "--nodes", "2"], stderr=subprocess.DEVNULL)
    wait_for("its first daemon", lambda: [words for words in left(NAME) if "flexo.daemon" in words])
    up.kill()
    up.wait()
    assert left(NAME)
    flexo("lab", "up", NAME, "--yarn", "--nodes", "1")
    assert len(json.loads(flexo("lab", "status", NAME, "--json"))["daemons"]) == 4
    flexo("lab", "down", NAME)
    assert left(NAME) == []


def _heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and so would a lab of tests that run there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_up_that_is_interrupted_leaves_nothing() -> None:
    command = [FLEXO, "lab", "up", NAME, "--yarn", "--nodes", "6"]
    up = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=_heed_interrupts)
    wait_for("its first daemon", lambda: [words for words in left(NAME) if "flexo.daemon" in words])
    up.send_signal(signal.SIGINT)
    assert up.wait(BOUND_S) == 130
    assert left(NAME) == []
