"""`flexo lab` where no lab can be, or none is: what it says, and with which status."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from flexo_cli.site.lab import app


@pytest.fixture(autouse=True)
def _no_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that is never made; that of tmp_path is too long for sockets."""
    monkeypatch.setenv("FLEXO_LABS", f"/tmp/flexo-labs-{os.getpid()}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--nodes", "0"], "nodes = 0: 1 to 256 are allowed"),
        (["up", "--gpus", "1000"], "gpus_per_node = 1000: 1 to 64 are allowed"),
        (["up", "--profile", "fast"], "the profiles are: quick, production, accounting"),
        (["up", "My Lab"], "'My Lab' cannot name a lab"),
        (["shell", "nobody"], "no lab 'nobody' is up; there are: none"),
        (["shell", "nobody", "--", "sinfo", "-N"], "no lab 'nobody' is up"),
        (["status", "nobody"], "no lab 'nobody' is up"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_web_pages_are_not_started_beside_a_yarn_lab() -> None:
    result = CliRunner().invoke(app, ["up", "--yarn", "--web"])
    assert result.exit_code == 2
    assert "--web" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("arguments", [["down", "nobody"], ["down", "nobody", "--json"]])
def test_taking_down_what_is_not_there_is_an_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no lab 'nobody'" in result.stderr


def test_without_root_up_and_down_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "a lab needs root" in CliRunner().invoke(app, ["up"]).stderr
    assert "needs root" in CliRunner().invoke(app, ["down"]).stderr


def test_status_without_labs_is_an_empty_list() -> None:
    assert CliRunner().invoke(app, ["status"]).stdout == "no labs\n"
    assert json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout) == {"labs": []}
