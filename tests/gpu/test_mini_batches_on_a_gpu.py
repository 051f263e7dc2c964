"""Mini-batches that are copied to a real GPU ahead of training: right numbers while the GPU is busy."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

from horovod_elastic.data import ElasticDataset  # noqa: E402

NUMBERS = 1 << 18


class Rows(Dataset):
    """Sample i is a row of 256 KiB full of i."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((NUMBERS // 4,), float(index)), index


def test_numbers_are_right_while_kernels_are_late() -> None:
    """Each mini-batch is read by kernels that wait in the queue, long after its reference has gone."""
    data = ElasticDataset(Rows(), 8, device="cuda", prefetch=4, prefetch_to_device=4, name="late")
    found, busy = [], torch.ones(4096, 4096, device="cuda")
    for rows, indices in data:
        assert rows.is_cuda
        for _ in range(4):
            busy = (busy @ busy).clamp(0, 1)
        found.append((rows.mean(dim=1), indices))
        del rows, indices
    for means, indices in found:
        assert torch.equal(means.round().long(), indices)
    assert sorted(number for _, indices in found for number in indices.tolist()) == list(range(256))
