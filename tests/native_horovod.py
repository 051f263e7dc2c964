"""How tests are parametrized by both cores: one of them needs Horovod's native library."""

from __future__ import annotations

import pytest

from horovod_elastic.core.choice import HOROVOD, TORCH

ON_HOROVOD = pytest.param(HOROVOD, marks=pytest.mark.native)
BOTH_CORES = [TORCH, ON_HOROVOD]
