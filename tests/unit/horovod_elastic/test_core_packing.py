"""Which flat buffers are kept, and how long. What is in them: tests/training/test_core_collectives.py."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from horovod_elastic.core.c10d import packing  # noqa: E402
from horovod_elastic.core.c10d.packing import Packing, Packings, Shapes  # noqa: E402


def of(packings: Packings, *sizes: int) -> Packing:
    shapes: Shapes = tuple((size,) for size in sizes)
    return packings.of(shapes, torch.float32, torch.device("cpu"))


def test_the_same_tensors_get_the_same_views() -> None:
    packings = Packings()
    assert of(packings, 3, 4) is of(packings, 3, 4)


def test_all_combinations_share_one_buffer() -> None:
    packings = Packings()
    large = of(packings, 100)
    assert of(packings, 3, 4).flat.data_ptr() == large.flat.data_ptr()


def test_a_buffer_that_was_outgrown_is_given_back() -> None:
    packings = Packings()
    small = weakref.ref(of(packings, 3))
    large = of(packings, 100)
    assert small() is None
    assert of(packings, 3).flat.data_ptr() == large.flat.data_ptr()


def test_a_very_large_buffer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "KEPT_BYTES", 100)
    packings = Packings()
    assert of(packings, 25) is of(packings, 25)
    assert of(packings, 26) is not of(packings, 26)


def test_only_so_many_combinations_are_kept() -> None:
    packings = Packings()
    kept = [weakref.ref(of(packings, 1000, size)) for size in reversed(range(packing.KEPT_PACKINGS + 1))]
    assert sum(each() is not None for each in kept) <= packing.KEPT_PACKINGS


def test_large_tensors_in_memory_go_in_parts_too_small_for_several_threads() -> None:
    assert [part.numel() for part in packing.parts([torch.empty(2, 20_000), torch.empty(5)])] == [
        packing.PART,
        40_000 - packing.PART,
        5,
    ]
