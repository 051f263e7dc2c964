"""How flexo-web begins: without root's rights, and with options that it can use."""

from __future__ import annotations

import os

import pytest

from flexo_web import process


@pytest.fixture
def as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65_534)


def test_it_refuses_to_run_as_root(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        process.main([])
    assert ended.value.code == 1
    assert "root" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--listen", "6837"], "HOST:PORT"),
        (["--listen", "ctl:0"], "HOST:PORT"),
        (["--listen", "ctl:99999"], "HOST:PORT"),
        (["--url", "ctl"], "https://HOST[:PORT]"),
        (["--port", "1"], "--port"),
    ],
)
@pytest.mark.usefixtures("as_nobody")
def test_options_that_it_cannot_use_end_it_with_2_and_what_is_allowed(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        process.main(options)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
