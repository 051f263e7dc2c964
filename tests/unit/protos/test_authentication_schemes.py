"""Callers and those who are called get their authenticator from one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexo_protos.credentials import MUNGE, Munge, new_authenticator

ROOT = Path(__file__).resolve().parents[3]


def test_munge_is_the_scheme_where_none_is_named() -> None:
    assert isinstance(new_authenticator(), Munge)
    assert isinstance(new_authenticator(MUNGE, socket="/run/munge/other"), Munge)


def test_a_scheme_that_does_not_exist_is_refused_by_name_beside_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"kerberos.*munge"):
        new_authenticator("kerberos")


def test_nobody_else_constructs_an_authenticator() -> None:
    sources = [
        path
        for room in ("daemon", "horovod_elastic", "protos", "packages", "slurm_plugin", "yarn_plugin")
        for path in (ROOT / room).rglob("*.py")
    ]
    constructing = [path.name for path in sources if re.search(r"\bMunge\(", path.read_text())]
    assert constructing == []
