"""Options of `make test-torch-matrix`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scripts", type=Path, help="the folder that has the scripts' sources, or gets them")
    parser.addoption("--changes", type=int, default=3, help="how often each script grows and shrinks")
    parser.addoption("--many", type=int, default=125, help="how often those with `longer` grow and shrink")
