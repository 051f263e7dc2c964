"""The size of parts of sums, as a job's environment has it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from horovod_elastic.aggregation.plan import PART_BYTES
from horovod_elastic.core.c10d.service import PART_VARIABLE, part_bytes


def test_parts_have_the_default_size_unless_a_size_is_given():
    assert part_bytes({}) == part_bytes({PART_VARIABLE: ""}) == PART_BYTES
    assert part_bytes({PART_VARIABLE: "64"}) == 64 << 10


@pytest.mark.parametrize("text", ["0", "3", "4097", "-64", "64k", "9" * 30])
def test_a_size_that_cannot_be_is_refused(text):
    with pytest.raises(RuntimeError, match="a number from 4 to 4096"):
        part_bytes({PART_VARIABLE: text})
