"""How tests are parametrized by both cores: one of them needs Horovod's native library."""

from __future__ import annotations

import pytest

from horovod_elastic.core.choice import HOROVOD, TORCH

ON_HOROVOD = pytest.param(HOROVOD, marks=pytest.mark.native)
BOTH_CORES = [TORCH, ON_HOROVOD]
TORCH_MOSTLY = [TORCH, pytest.param(HOROVOD, marks=[pytest.mark.native, pytest.mark.thorough])]
"""For what Horovod's library does by itself: there it shows that a test is right, and not that flexo is."""
