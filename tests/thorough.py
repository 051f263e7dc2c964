"""The thoroughness of a run: `make test-all` draws all random examples, other runs draw an eighth of them."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

THOROUGH: Final = bool(os.environ.get("FLEXO_THOROUGH"))
LEAST: Final = 5


def rare(*values: object) -> Any:
    """These values of a parametrized test are for thorough runs: others of them stand for the same."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def examples(number: int) -> int:
    """Number of examples to draw in this run. `number`: the examples of a thorough run."""
    return number if THOROUGH else max(LEAST, number // 8)
