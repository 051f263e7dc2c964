"""A few of the seeds of make test-chaos: one of each kind of victim."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from thorough import rare

from chaos.harness import cluster, run
from chaos.plan import plan
from flexo_lab import Lab, why_unavailable
from horovod_elastic.core.choice import HOROVOD, TORCH

pytestmark = [pytest.mark.training, pytest.mark.slow]


@pytest.fixture(scope="module")
def chaos_lab() -> Iterator[Lab]:
    if reason := why_unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with cluster() as lab:
        yield lab


@pytest.mark.parametrize(
    ("seed", "core"),
    [(3, TORCH), rare(5, TORCH), (7, TORCH), pytest.param(8, HOROVOD, marks=pytest.mark.native)],
)
def test_nothing_is_lost_hangs_or_is_left_behind(chaos_lab: Lab, seed: int, core: str) -> None:
    outcome = run(chaos_lab, plan(seed), chaos_lab.scratch / f"seed{seed}", core)
    assert outcome.wrong == ()
    assert outcome.verdict is not None
    assert outcome.verdict.epochs > 0
