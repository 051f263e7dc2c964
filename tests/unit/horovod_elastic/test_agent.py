"""Which GPUs a worker sees."""

from __future__ import annotations

import pytest

from horovod_elastic.agent import devices_seen


@pytest.mark.parametrize(
    ("gpus", "slot", "local_rank", "seen"),
    [
        (1, 0, 0, "0,1,2"),
        (1, 1, 1, "0,1,2"),
        (1, 0, 1, "1,0,2"),
        (1, 2, 0, "2,1,0"),
        (1, 3, 0, "0,1,2"),
        (2, 0, 0, "0,1"),
        (2, 1, 0, "2"),
    ],
)
def test_the_gpu_of_its_slot_is_where_the_script_looks(
    gpus: int, slot: int, local_rank: int, seen: str
) -> None:
    found = devices_seen(["0", "1", "2"], gpus, slot, local_rank)
    assert ",".join(found) == seen
    if gpus == 1 and slot < 3:
        assert found[local_rank] == str(slot)
